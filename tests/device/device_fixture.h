#pragma once

// What tests on the test device share.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/test_device.h"

namespace tutti::test_device {

inline constexpr Held kProfiles[] = {Held::kSideStreams, Held::kDefaultStreams};

/// Each test starts with side streams held and nothing queued.
class DeviceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool is_registered = [] {
      at::set_num_threads(1);
      register_device(2);
      return true;
    }();
    ASSERT_TRUE(is_registered);
  }
  void SetUp() override { hold(Held::kSideStreams); }

  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(device().type());
  }
  static c10::Stream default_stream() { return guard().getDefaultStream(device()); }
  static c10::Stream side_stream() { return guard().getStreamFromGlobalPool(device()); }
  static c10::Event event() { return c10::Event(device().type()); }
};

inline std::string bytes_of(const at::Tensor& tensor) {
  const auto host = tensor.detach().cpu().contiguous();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}
inline std::vector<std::string> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> bytes;
  for (const auto& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

}  // namespace tutti::test_device
