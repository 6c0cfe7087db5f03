#include "torch/recompute/result_memory.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "torch/model/overlap.h"
#include "tutti/error.h"

namespace tutti {
bool is_in_graph(const torch::Tensor& result) {
  if (!result.defined()) return false;
  return result.requires_grad() || (result.is_view() && result._base().requires_grad());
}

ResultMemory::ResultMemory(const std::vector<torch::Tensor>& results,
                           const std::vector<torch::Tensor>& inputs) {
  const auto shares = [](const torch::Tensor& result) {
    return [&result](const torch::Tensor& other) {
      return other.defined() && !other.is_same(result) && overlap(result, other);
    };
  };
  for (std::size_t r = 0; r < results.size(); ++r) {
    const auto& result = results[r];
    if (!result.defined()) continue;
    const auto& counter = torch::autograd::impl::version_counter(result);
    if (!counter.enabled()) continue;
    const auto watch = [&](const std::string& why) {
      watched_.push_back({fmt::format("result {} shares memory with {}", r, why), counter,
                          counter.current_version()});
    };
    if (const auto input = std::ranges::find_if(inputs, shares(result)); input != inputs.end()) {
      watch(
          fmt::format("input {}, and one of them was changed in place since, so that the segment "
                      "cannot run again",
                      input - inputs.begin()));
      continue;
    }
    if (!is_in_graph(result)) continue;
    const auto other = std::ranges::find_if(
        results, [&](const torch::Tensor& one) { return shares(result)(one) && is_in_graph(one); });
    if (other == results.end()) continue;
    watch(
        fmt::format("result {}, and one of them was changed in place since, of which the "
                    "gradient of the other knows nothing",
                    other - results.begin()));
  }
}

void ResultMemory::require_unchanged(const std::string& name) const {
  for (const auto& watched : watched_) {
    if (watched.counter.current_version() == watched.version) continue;
    throw InvalidArgument(
        fmt::format("recompute \"{}\": {}: let it return a clone()", name, watched.why));
  }
}

}  // namespace tutti
