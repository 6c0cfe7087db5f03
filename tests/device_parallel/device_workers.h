#pragma once

// Workers whose models are on test devices, of which there are two: local_device(job). They are
// processes of their own, which register them once they have been forked.

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/test_device.h"
#include "torch/training.h"

namespace tutti::test {

inline constexpr test_device::Held kProfiles[] = {test_device::Held::kSideStreams,
                                                  test_device::Held::kDefaultStreams};

inline void on_device_workers(int size, test_device::Held held,
                              const std::function<void(const Job&)>& body) {
  on_workers(size, [&](const Job& job) {
    test_device::register_device(2);
    test_device::hold(held);
    body(job);
    test_device::synchronize();
  });
}

inline std::string text_on_device_rank_0(int size, test_device::Held held,
                                         const std::function<std::string(const Job&)>& body) {
  return text_of_rank_0(size, [&](const Job& job) {
    test_device::register_device(2);
    test_device::hold(held);
    auto text = body(job);
    test_device::synchronize();
    return text;
  });
}

}  // namespace tutti::test
