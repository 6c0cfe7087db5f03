#include "torch/sums/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

NcclLibrary::NcclLibrary(const std::string& file)
    : file_(file), handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw Unsupported(fmt::format(
        "NCCL: {}; libtorch's CUDA builds come with it (nvidia/nccl/lib/libnccl.so.2): put its "
        "folder into LD_LIBRARY_PATH, or use another engine",
        ::dlerror()));
  }
  find(get_version, "ncclGetVersion");
  find(get_unique_id, "ncclGetUniqueId");
  find(comm_init_rank_config, "ncclCommInitRankConfig");
  find(all_reduce, "ncclAllReduce");
  find(comm_get_async_error, "ncclCommGetAsyncError");
  find(comm_abort, "ncclCommAbort");
  find(get_error_string, "ncclGetErrorString");
  find(get_last_error, "ncclGetLastError");
}

template <class Function>
void NcclLibrary::find(Function*& function, const char* name) const {
  function = reinterpret_cast<Function*>(::dlsym(handle_, name));
  if (function != nullptr) return;
  throw Unsupported(
      fmt::format("NCCL: {} has no {}, which there is from NCCL 2.14 on", file_, name));
}

}  // namespace tutti
