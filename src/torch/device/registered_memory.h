#pragma once

// Memory of the host that libtorch has not allocated, told to a device, so that copies between the
// two run beside the program as those of pinned memory do: by functions of the device's library,
// which are found at run time by their names (cudaHostRegister, cudaHostUnregister,
// cudaGetLastError; for another kind of device with its name in place of "cuda").
//
// Threads: any. Failure: none; what is missing is a text.

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>

namespace tutti {

class RegisteredMemory {
 public:
  /// Pins all pages of [begin, begin + bytes), which begins on a page, and gives them memory. Null
  /// where that cannot be: then `problem` says why.
  static std::unique_ptr<RegisteredMemory> of(c10::Device device, std::byte* begin,
                                              std::size_t bytes, std::string& problem);
  /// No copy may be under way. The memory is still mapped.
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

 private:
  struct Library;
  RegisteredMemory(const Library& library, std::byte* begin) : library_(library), begin_(begin) {}
  static const Library& library_of(c10::Device device);

  const Library& library_;
  std::byte* begin_;
};

}  // namespace tutti
