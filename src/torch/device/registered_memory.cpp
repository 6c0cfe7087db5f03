#include "torch/device/registered_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <type_traits>

namespace tutti {

/// Functions as in cuda_runtime_api.h; each returns 0 where it succeeds.
struct RegisteredMemory::Library {
  int (*add)(void* begin, std::size_t bytes, unsigned flags) = nullptr;
  int (*remove)(void* begin) = nullptr;
  int (*last_error)() = nullptr;
};

const RegisteredMemory::Library& RegisteredMemory::library_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceType, Library> all;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = all.try_emplace(device.type());
  if (is_new) {
    const auto kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    const auto find = [&](auto& function, const char* name) {
      using Function = std::remove_reference_t<decltype(function)>;
      function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, (kind + name).c_str()));
    };
    find(found->second.add, "HostRegister");
    find(found->second.remove, "HostUnregister");
    find(found->second.last_error, "GetLastError");
  }
  return found->second;
}

std::unique_ptr<RegisteredMemory> RegisteredMemory::of(c10::Device device, std::byte* begin,
                                                       std::size_t bytes, std::string& problem) {
  const auto& library = library_of(device);
  if (library.add == nullptr || library.remove == nullptr || library.last_error == nullptr) {
    problem =
        fmt::format("the library of {} has no function to pin memory that is there", device.str());
    return nullptr;
  }
  constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: known to all contexts
  if (const int error = library.add(begin, bytes, kPortable); error != 0) {
    library.last_error();  // or another call would be taken to have failed
    problem = fmt::format("{} does not pin {} bytes of shared memory (error {})", device.str(),
                          bytes, error);
    return nullptr;
  }
  return std::unique_ptr<RegisteredMemory>(new RegisteredMemory(library, begin));
}

RegisteredMemory::~RegisteredMemory() {
  if (library_.remove(begin_) != 0) library_.last_error();
}

}  // namespace tutti
