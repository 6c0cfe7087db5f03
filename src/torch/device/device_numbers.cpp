#include "torch/device/device_numbers.h"

namespace tutti {

std::size_t DeviceNumbers::add(const torch::Tensor& number) {
  numbers_[number.scalar_type()].emplace_back(count_, number.detach().reshape({}));
  return count_++;
}

std::size_t DeviceNumbers::add_copy(const torch::Tensor& number) {
  torch::Tensor copy;
  device_.run([&] { copy = number.detach().clone(); });
  return add(copy);
}

std::vector<double> DeviceNumbers::fetch() {
  std::vector<double> fetched(count_);
  if (count_ == 0) return fetched;
  std::vector<std::size_t> places;
  torch::Tensor all;
  device_.run([&] {
    std::vector<torch::Tensor> parts;
    for (const auto& [type, numbers] : numbers_) {
      std::vector<torch::Tensor> values;
      for (const auto& [place, value] : numbers) {
        places.push_back(place);
        values.push_back(value.to(device_.device()));
      }
      parts.push_back(torch::stack(values).to(torch::kFloat64));
    }
    all = torch::cat(parts);
  });
  const auto on_host = device_.host_like(all);
  device_.copy(all, on_host);
  device_.wait(device_.mark(), [] { return "the numbers of a step"; });
  for (std::size_t k = 0; k < places.size(); ++k) {
    fetched[places[k]] = on_host.const_data_ptr<double>()[k];
  }
  drop();
  return fetched;
}

}  // namespace tutti
