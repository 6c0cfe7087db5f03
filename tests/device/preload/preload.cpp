// The test device for programs that know nothing of it: loaded before they start (LD_PRELOAD), as
// libtorch_cuda.so is by those that use a GPU. TEST_DEVICE_HELD=default holds the default streams.

#include <ATen/Parallel.h>

#include <cstdlib>
#include <string_view>

#include "device/test_device.h"

namespace tutti::test_device {
namespace {

[[maybe_unused]] const bool is_registered = [] {
  at::set_num_threads(1);
  register_device();
  const char* const held = std::getenv("TEST_DEVICE_HELD");
  if (held != nullptr && std::string_view(held) == "default") hold(Held::kDefaultStreams);
  return true;
}();

}  // namespace
}  // namespace tutti::test_device
