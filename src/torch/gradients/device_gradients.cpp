#include "torch/gradients/device_gradients.h"

#include <algorithm>

namespace tutti {

void DeviceGradients::add(std::size_t parameter, const torch::Tensor& gradient, bool last,
                          double times) {
  // The copy has one place per parameter.
  const auto is_of_it = [&](const Coming& one) { return one.parameter == parameter; };
  while (std::ranges::any_of(coming_, is_of_it)) write_first();
  auto& device = host_.device();
  device.copy(gradient, host_.of_parameter(parameter));
  coming_.push_back({parameter, last, times, device.mark()});
  while (!coming_.empty() && device.has_passed(coming_.front().mark)) write_first();
}

void DeviceGradients::settle() {
  while (!coming_.empty()) write_first();
}

void DeviceGradients::write_first() {
  const auto first = coming_.front();
  host_.device().wait(first.mark,
                      [&] { return "the gradient of " + host_.label(first.parameter); });
  coming_.pop_front();
  write_(first.parameter, host_.of_parameter(first.parameter).data_ptr(), first.last, first.times);
}

}  // namespace tutti
