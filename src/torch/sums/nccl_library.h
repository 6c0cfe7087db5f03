#pragma once

// NCCL's C functions, found at run time: no header of NCCL is needed to build, and no library to
// start. What is declared here is the binary interface of nccl.h since NCCL 2.14.
//
// Threads: any. Failure: Unsupported where there is no such library, or it lacks a function.

#include <array>
#include <cstddef>
#include <string>

namespace tutti {

using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;
inline constexpr NcclResult kNcclInProgress = 7;

using NcclComm = void*;
struct NcclUniqueId {
  std::array<char, 128> internal;
};

/// ncclConfig_t as of 2.14: later versions read its version and know what it lacks.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;  ///< calls return before they have finished: ncclInProgress
};

class NcclLibrary {
 public:
  /// `file` as dlopen() takes it; kept open for good.
  explicit NcclLibrary(const std::string& file);

  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclUniqueId* id);
  NcclResult (*comm_init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                      NcclConfig* config);
  NcclResult (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation,
                           NcclComm comm, void* stream);
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* state);
  NcclResult (*comm_abort)(NcclComm comm);
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclComm comm);

 private:
  template <class Function>
  void find(Function*& function, const char* name) const;

  std::string file_;
  void* handle_;
};

}  // namespace tutti
