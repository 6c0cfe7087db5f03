#include "torch/shards/shard_states.h"

#include <fmt/format.h>

#include <optional>

#include "base/number.h"
#include "torch/model/random_state.h"
#include "torch/run/stored_tensors.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::string_view kShard = "/shard-";

std::string key_of(std::int64_t shard, const std::string& name) {
  return fmt::format("{}{}{}", name, kShard, shard);
}

std::optional<std::int64_t> shard_of(const std::string& key) {
  const auto at = key.rfind(kShard);
  if (at == std::string::npos) return {};
  const auto shard = parse_number<std::int64_t>(std::string_view(key).substr(at + kShard.size()));
  return shard && *shard >= 0 ? shard : std::nullopt;
}

}  // namespace

torch::Tensor ShardStates::of(std::int64_t shard, const std::string& name, const Init& init) {
  if (name.empty()) throw InvalidArgument("a shard's state needs a name");
  const auto key = key_of(shard, name);
  if (const auto found = working_.find(key); found != working_.end()) return found->second;
  const auto last = committed_.find(key);
  torch::Tensor value = last != committed_.end() ? last->second : init();
  if (packed_.contains(key)) value = moved(value, init);
  if (!value.defined() || value.layout() != torch::kStrided ||
      (!value.device().is_cpu() && value.device() != device_)) {
    throw InvalidArgument(fmt::format("shard {}: state \"{}\" must be a dense tensor on the CPU{}",
                                      shard, name,
                                      device_.is_cpu() ? "" : " or on " + device_.str()));
  }
  require_storable(fmt::format("shard {}: state \"{}\"", shard, name), value);
  return working_[key] = value.detach().clone(torch::MemoryFormat::Contiguous);
}

torch::Tensor ShardStates::moved(const torch::Tensor& value, const Init& init) const {
  const RandomStateGuard guard(device_);
  const auto first = init();
  return first.defined() ? value.to(first.device()) : value;
}

void ShardStates::commit(const std::function<bool(std::int64_t shard)>& counts) {
  for (auto& [key, tensor] : working_) {
    if (!counts(*shard_of(key))) continue;
    committed_[key] = tensor.detach();
    packed_.erase(key);
  }
  working_.clear();
}

NamedTensors ShardStates::some_of(const Tensors& tensors, std::int64_t shard) {
  NamedTensors some;
  for (const auto& [key, tensor] : tensors) {
    if (shard_of(key) == shard) some.emplace_back(key, tensor);
  }
  return some;
}

std::vector<std::byte> ShardStates::packed() const {
  return tutti::packed({committed_.begin(), committed_.end()});
}

NamedTensors ShardStates::unpack(std::span<const std::vector<std::byte>> workers) {
  std::map<Key, torch::Tensor> all;
  for (const auto& bytes : workers) {
    for (auto& [key, tensor] : unpacked(bytes)) all[key] = std::move(tensor);
  }
  return {all.begin(), all.end()};
}

void ShardStates::take(const NamedTensors& states, const ShardRange& mine) {
  committed_.clear();
  working_.clear();
  packed_.clear();
  for (const auto& [key, tensor] : states) {
    const auto shard = shard_of(key);
    if (!shard || *shard < mine.begin || *shard >= mine.end) continue;
    committed_[key] = tensor;
    if (!device_.is_cpu()) packed_.insert(key);
  }
}

void ShardStates::check_names(const NamedTensors& states, std::int64_t shards) {
  for (const auto& [key, tensor] : states) {
    const auto shard = shard_of(key);
    if (!shard || *shard >= shards) {
      throw InvalidArgument(
          fmt::format("\"{}\" is not the state of one of {} shards", key, shards));
    }
  }
}

}  // namespace tutti
