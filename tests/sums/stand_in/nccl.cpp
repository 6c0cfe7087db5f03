// Stands in for NCCL on the test device: a library with the symbols that Tutti looks for, over
// memory that the processes of a communicator share. It is as strict: calls return before they have
// finished, sums run on the stream that they were given, and wait there for the other workers.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "device/native_stream.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr int kMostRanks = 8;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

/// Memory that all workers of a communicator map. A worker posts its part of sum k once all have
/// taken what sum k − 1 is made of.
struct Shared {
  std::atomic<int> joined;
  std::array<std::atomic<std::uint64_t>, kMostRanks> posted;
  std::array<std::atomic<std::uint64_t>, kMostRanks> taken;
  std::array<std::array<std::byte, kMostBytes>, kMostRanks> parts;
};

struct Comm {
  Shared* shared = nullptr;
  int ranks = 0;
  int rank = 0;
  std::uint64_t sums = 0;
  std::atomic<bool> aborted = false;

  template <class Words>
  bool have_all(const Words& words, std::uint64_t value) const {
    return std::all_of(words.begin(), words.begin() + ranks,
                       [&](const auto& word) { return word.load() >= value; });
  }
  ~Comm() { ::munmap(shared, sizeof(Shared)); }
};

/// Last rank first: another order than Tutti's.
template <class Element>
void add_up(const Comm& comm, void* to, std::size_t count) {
  auto* const sum = static_cast<Element*>(to);
  for (int r = comm.ranks - 1; r >= 0; --r) {
    const auto* const part = reinterpret_cast<const Element*>(comm.shared->parts[r].data());
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = r == comm.ranks - 1 ? part[i] : sum[i] + part[i];
    }
  }
}

std::string& last_error() {
  static std::string text;
  return text;
}

int refuse(int result, const char* why) {
  last_error() = why;
  return result;
}

struct Config {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
};
struct UniqueId {
  std::array<char, 128> internal;
};
using Handle = std::shared_ptr<Comm>*;

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22703;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  const auto name = "/tutti_nccl_" + std::to_string(::getpid()) + "_" + std::to_string(made++);
  *id = {};
  name.copy(id->internal.data(), id->internal.size() - 1);
  return kSuccess;
}

int ncclCommInitRankConfig(Handle* handle, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->size != 24 || config->version != 21400 ||
      config->blocking != 0) {
    return refuse(kInvalidArgument, "the configuration is not one of 2.14 that does not block");
  }
  if (ranks > kMostRanks || rank < 0 || rank >= ranks) return refuse(kInvalidArgument, "ranks");
  const auto file = ::shm_open(id.internal.data(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Shared)) != 0) return kSystemError;
  auto* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (at == MAP_FAILED) return kSystemError;
  auto comm = std::make_shared<Comm>();
  comm->shared = static_cast<Shared*>(at);
  comm->ranks = ranks;
  comm->rank = rank;
  if (++comm->shared->joined == ranks) ::shm_unlink(id.internal.data());
  *handle = new std::shared_ptr<Comm>(std::move(comm));
  return kInProgress;
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation,
                  Handle handle, tutti::test_device::NativeStream* stream) {
  if (operation != 0 || (type != 7 && type != 8)) return refuse(kInvalidArgument, "not a sum");
  const auto bytes = count * (type == 8 ? 8 : 4);
  if (bytes > kMostBytes) return refuse(kInvalidUsage, "too long for a stand-in");
  const auto comm = *handle;
  const auto number = ++comm->sums;
  const void* const source = stream->kernel_address(from);
  void* const target = stream->kernel_address(to);
  stream->push(*stream, [=] {
    if (comm->aborted) return true;
    auto& shared = *comm->shared;
    if (shared.posted[comm->rank] < number) {
      if (!comm->have_all(shared.taken, number - 1)) return false;
      std::memcpy(shared.parts[comm->rank].data(), source, bytes);
      shared.posted[comm->rank] = number;
    }
    if (!comm->have_all(shared.posted, number)) return false;
    if (type == 8) {
      add_up<double>(*comm, target, count);
    } else {
      add_up<float>(*comm, target, count);
    }
    shared.taken[comm->rank] = number;
    return true;
  });
  return kInProgress;
}

int ncclCommGetAsyncError(Handle handle, int* state) {
  const auto& comm = **handle;
  *state = comm.shared->joined == comm.ranks ? kSuccess : kInProgress;
  return kSuccess;
}

int ncclCommAbort(Handle handle) {
  (*handle)->aborted = true;
  delete handle;
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "invalid usage" : "invalid argument";
}

const char* ncclGetLastError(Handle) { return last_error().c_str(); }

}  // extern "C"
