#include "environment/gpu_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace tutti {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, as in cuda.h

/// A function of the driver's, all of which return 0 or an error. Null where it has none.
template <class... Arguments>
auto function(void* library, const char* name) {
  return reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, name));
}

std::string text_of_error(void* library, int error) {
  const char* text = nullptr;
  const auto tell = function<int, const char**>(library, "cuGetErrorString");
  if (tell == nullptr || tell(error, &text) != 0 || text == nullptr) {
    return fmt::format("error {}", error);
  }
  return text;
}

std::string text_of_uuid(const std::array<unsigned char, 16>& bytes) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

Gpu read_gpu(void* library, int number) {
  Gpu gpu;
  std::array<char, 256> name{};
  const auto name_of = function<char*, int, int>(library, "cuDeviceGetName");
  if (name_of != nullptr && name_of(name.data(), static_cast<int>(name.size()) - 1, number) == 0) {
    gpu.name = name.data();
  }
  const auto attribute = function<int*, int, int>(library, "cuDeviceGetAttribute");
  if (attribute != nullptr) attribute(&gpu.multiprocessors, kMultiprocessors, number);
  std::size_t bytes = 0;
  const auto memory = function<std::size_t*, int>(library, "cuDeviceTotalMem_v2");
  if (memory != nullptr && memory(&bytes, number) == 0) gpu.bytes = bytes;
  std::array<unsigned char, 16> uuid{};
  // The second one tells parts of a GPU (MIG) apart.
  for (const char* const each : {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}) {
    const auto uuid_of = function<unsigned char*, int>(library, each);
    if (uuid_of == nullptr || uuid_of(uuid.data(), number) != 0) continue;
    gpu.uuid = text_of_uuid(uuid);
    break;
  }
  return gpu;
}

}  // namespace

GpuDriver read_gpu_driver() {
  GpuDriver driver;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_NODELETE);
  if (library == nullptr) {
    driver.problem = fmt::format("{} of NVIDIA's driver is not there", kLibrary);
    return driver;
  }
  const auto start = function<unsigned>(library, "cuInit");
  const auto version = function<int*>(library, "cuDriverGetVersion");
  const auto count = function<int*>(library, "cuDeviceGetCount");
  if (start == nullptr || version == nullptr || count == nullptr) {
    driver.problem = fmt::format("{} is none of NVIDIA's driver", kLibrary);
    return driver;
  }
  version(&driver.cuda);
  int gpus = 0;
  int error = start(0);
  if (error == 0) error = count(&gpus);
  if (error != 0) driver.problem = text_of_error(library, error);
  for (int number = 0; number < gpus; ++number) driver.gpus.push_back(read_gpu(library, number));
  return driver;
}

int gpus_on_bus() {
  namespace fs = std::filesystem;
  const auto line_of = [](const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
  };
  int found = 0;
  std::error_code none;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", none)) {
    const bool is_nvidia = line_of(device.path() / "vendor") == "0x10de";
    if (is_nvidia && line_of(device.path() / "class").starts_with("0x03")) ++found;
  }
  return found;
}

bool has_gpu_context() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto count = function<int*>(library, "cuDeviceGetCount");
  const auto state = function<int, unsigned*, int*>(library, "cuDevicePrimaryCtxGetState");
  int gpus = 0;
  bool any = false;
  if (count != nullptr && state != nullptr && count(&gpus) == 0) {
    for (int number = 0; number < gpus && !any; ++number) {
      unsigned flags = 0;
      int is_active = 0;
      any = state(number, &flags, &is_active) == 0 && is_active != 0;
    }
  }
  ::dlclose(library);
  return any;
}

void set_cublas_workspace() {
  if (std::getenv(kCublasWorkspace) != nullptr || has_gpu_context()) return;
  ::setenv(kCublasWorkspace, ":4096:8", 0);
}

bool is_cublas_deterministic() {
  const char* const text = std::getenv(kCublasWorkspace);
  if (text == nullptr) return false;
  const std::string_view value = text;
  return value == ":4096:8" || value == ":16:8";
}

}  // namespace tutti
