#include "torch/gradients/device_gradients.h"

#include <algorithm>
#include <cstring>

#include "torch/model/tensor_at.h"

namespace tutti {

/// Sums of the last step leave from where gradients come to.
void DeviceGradients::open() { host_.device().comes_after(host_.sums().mark()); }

void DeviceGradients::add(std::size_t parameter, const torch::Tensor& gradient, bool last,
                          double times) {
  if (!exchange_.holds_values()) {
    keep(parameter, gradient);
    return write_(parameter, nullptr, last, times, false);
  }
  // The copy has one place per parameter.
  const auto is_of_it = [&](const Coming& one) { return one.parameter == parameter; };
  while (std::ranges::any_of(coming_, is_of_it)) write_first();
  auto& device = host_.device();
  // What may be added to is not in its slot yet.
  auto loan = last ? pinned_.lend(parameter) : nullptr;
  const auto to = loan ? tensor_at(loan->at(), gradient, gradient.scalar_type())
                       : host_.of_parameter(parameter);
  device.copy(gradient, to);
  coming_.push_back({parameter, last, times, device.mark(), to.const_data_ptr(), std::move(loan)});
  while (!coming_.empty() && device.has_passed(coming_.front().mark)) write_first();
}

/// A parameter has two gradients at most, one of them set by hand, so that the sum of two of 16
/// bits is rounded once, as on the host.
void DeviceGradients::keep(std::size_t parameter, const torch::Tensor& gradient) {
  auto& sum = staying_[parameter];
  host_.sums().queue([&] { sum = sum.defined() ? sum + gradient : gradient; }, gradient);
}

void DeviceGradients::settle() {
  while (!coming_.empty()) write_first();
}

void DeviceGradients::write_first() {
  host_.device().wait(coming_.front().mark,
                      [&] { return "the gradient of " + host_.label(coming_.front().parameter); });
  const auto first = std::move(coming_.front());
  coming_.pop_front();
  write_(first.parameter, first.at, first.last, first.times, first.loan != nullptr);
}

void DeviceGradients::give(std::size_t parameter, const torch::Tensor& to) {
  auto& device = host_.sums();
  if (const auto staying = staying_.find(parameter); staying != staying_.end()) {
    device.queue([&] { to.detach().copy_(staying->second); }, to);
    staying_.erase(staying);
    return;
  }
  if (auto* const at = pinned_.result(parameter)) {
    return device.copy(tensor_at(at, to, to.scalar_type()), to);
  }
  const auto& copy = host_.of_parameter(parameter);
  if (copy.nbytes() > 0) {
    std::memcpy(copy.data_ptr(), exchange_.nodes().result(parameter), copy.nbytes());
  }
  device.copy(copy, to);
}

void DeviceGradients::hand_over() { host_.sums().current_stream_waits(host_.sums().mark()); }

}  // namespace tutti
