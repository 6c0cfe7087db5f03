// Buffers of shards of which several workers compute a part each.

#include <torch/csrc/autograd/variable.h>

#include "torch/model/same_bytes.h"
#include "torch/shards/shard_buffers.h"

namespace tutti {

void ShardBuffers::enter(const std::vector<std::pair<std::int64_t, torch::Tensor>>& changed) {
  move_back();
  for (const auto& item : changed) varies_[static_cast<std::size_t>(item.first)] = 1;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (varies_[b] != 0) move(b, begin(0, b).clone(), c10::VariableVersion(0));
  }
  for (const auto& [b, value] : changed) {
    copy_bytes(buffers_[static_cast<std::size_t>(b)].second, value.const_data_ptr());
  }
}

void ShardBuffers::move(std::size_t buffer, const torch::Tensor& memory,
                        const c10::VariableVersion& version) const {
  const torch::NoGradGuard no_grad;
  const auto& tensor = buffers_[buffer].second;
  tensor.set_data(memory);
  torch::autograd::impl::set_version_counter(tensor, version);
}

ShardBuffers::Place ShardBuffers::place() const {
  Place place;
  for (const auto& item : buffers_) {
    place.memory.push_back(item.second.variable_data());
    place.versions.push_back(torch::autograd::impl::version_counter(item.second));
  }
  return place;
}

void ShardBuffers::put_back(const Place& place) {
  for (std::size_t b = 0; b < buffers_.size(); ++b) move(b, place.memory[b], place.versions[b]);
}

void ShardBuffers::move_back() noexcept {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].second.const_data_ptr() != home_.memory[b].const_data_ptr()) {
      move(b, home_.memory[b], home_.versions[b]);
    }
  }
}

std::vector<torch::Tensor> ShardBuffers::changes() {
  std::vector<torch::Tensor> changed(buffers_.size());
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& tensor = buffers_[b].second;
    if (same_bytes(tensor, begin(0, b))) continue;
    changed[b] = tensor.detach().clone();
    varies_[b] = 1;
  }
  return changed;
}

void ShardBuffers::take_changes(std::span<const std::optional<std::vector<torch::Tensor>>> shards,
                                std::span<const std::uint8_t> hands_in) {
  bool is_first = true;
  for (const auto& shard : shards) {
    if (!shard) {
      skip();
      continue;
    }
    const auto value_of = [&](std::size_t b) -> const void* {
      if (hands_in[b] == 0) return nullptr;
      return ((*shard)[b].defined() ? (*shard)[b] : begin(0, b)).const_data_ptr();
    };
    take(0, value_of, std::exchange(is_first, false), false);
  }
}

}  // namespace tutti
