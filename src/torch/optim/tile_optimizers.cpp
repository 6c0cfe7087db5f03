#include "torch/optim/tile_optimizers.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "torch/model/tensor_at.h"
#include "torch/optim/torch_rule.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

TileOptimizers::TileOptimizers(const Plan& plan, const SharedModel& model,
                               std::vector<std::shared_ptr<const TorchRule>> rules, int rank,
                               int size)
    : plan_(plan), model_(model), rules_(std::move(rules)) {
  std::vector<std::uint32_t> parameters;
  for (std::uint32_t p = 0; p < rules_.size(); ++p) {
    if (rules_[p]) parameters.push_back(p);
  }
  for (const auto& range : tile_share(plan_, parameters, rank, size)) {
    for (const auto& tile : tiles_of(range)) {
      const Key key{tile.parameter, tile.begin};
      move_state(key, tiles_[key] = make(tile));
    }
  }
}

torch::Tensor TileOptimizers::view(std::byte* base, std::uint32_t parameter, std::int64_t begin,
                                   std::int64_t count) const {
  const auto type = plan_.parameters()[parameter].node_type;
  return tensor_at(base + static_cast<std::size_t>(begin) * size_of(type), {count}, std::nullopt,
                   scalar_type_of(type));
}

TileOptimizers::Tile TileOptimizers::make(const ElementRange& tile) const {
  const auto p = tile.parameter;
  Tile made{.values = view(model_.master(p), p, tile.begin, tile.end - tile.begin),
            .optimizer = nullptr,
            .rates = {}};
  made.optimizer = rules_[p]->make({made.values});
  for (const auto& group : made.optimizer->param_groups()) {
    made.rates.push_back(group.options().get_lr());
  }
  return made;
}

NamedTensors TileOptimizers::shared_state(const Key& key, const Tile& tile) const {
  const auto [p, begin] = key;
  NamedTensors tensors;
  for (const auto& name : rules_[p]->states()) {
    const auto k = static_cast<int>(tensors.size());
    tensors.emplace_back(name, view(model_.state(p, k), p, begin, tile.values.numel()));
  }
  return tensors;
}

/// Optimizers make their state when they are made, or in their first step.
void TileOptimizers::move_state(const Key& key, Tile& tile) const {
  const auto* const state = kept_of(*tile.optimizer, tile.values);
  if (state == nullptr) return;
  auto contents = contents_of(*state);
  const auto shared = shared_state(key, tile);
  if (contents.tensors.size() != shared.size()) {
    throw InvalidArgument(fmt::format("{}: its state has other tensors than when it was tried out",
                                      rules_[key.first]->text()));
  }
  for (std::size_t k = 0; k < shared.size(); ++k) {
    shared[k].second.copy_(contents.tensors[k].second);
  }
  contents.tensors = shared;
  rules_[key.first]->replace_state(*tile.optimizer, tile.values, contents);
  tile.moved = true;
}

void TileOptimizers::update(const ElementRange& tile, void* gradient, double rate_factor) {
  const Key key{tile.parameter, tile.begin};
  auto& mine = tiles_.at(key);
  try {
    std::size_t g = 0;
    for (auto& group : mine.optimizer->param_groups()) {
      group.options().set_lr(mine.rates[g++] * rate_factor);
    }
    mine.values.mutable_grad() =
        view(static_cast<std::byte*>(gradient), tile.parameter, 0, mine.values.numel());
    mine.optimizer->step();
    mine.values.mutable_grad().reset();
    if (!mine.moved) move_state(key, mine);
  } catch (const std::exception& error) {
    throw Mismatch(
        fmt::format("parameter \"{}\": its optimizer failed in the middle of an update: {}",
                    plan_.parameters()[tile.parameter].spec.name, error.what()));
  }
}

nlohmann::json TileOptimizers::numbers() const {
  auto all = nlohmann::json::object();
  for (const auto& [key, tile] : tiles_) {
    const auto& name = plan_.parameters()[key.first].spec.name;
    const auto* const state = kept_of(*tile.optimizer, tile.values);
    if (state != nullptr && !all.contains(name)) all[name] = contents_of(*state).numbers;
  }
  return all;
}

void TileOptimizers::check(const nlohmann::json& numbers) const {
  if (!numbers.is_object()) throw InvalidArgument("the optimizers' numbers are not an object");
  std::size_t known = 0;
  for (std::size_t p = 0; p < rules_.size(); ++p) {
    const auto found = numbers.find(plan_.parameters()[p].spec.name);
    if (!rules_[p] || found == numbers.end()) continue;
    rules_[p]->check_numbers(*found);
    ++known;
  }
  if (known != numbers.size())
    throw InvalidArgument("the optimizers' numbers name other parameters");
}

void TileOptimizers::restore(const nlohmann::json& numbers) {
  for (auto& [key, tile] : tiles_) {
    const auto [p, begin] = key;
    tile = make({p, begin, begin + tile.values.numel()});
    const auto found = numbers.find(plan_.parameters()[p].spec.name);
    if (found == numbers.end()) continue;
    rules_[p]->replace_state(*tile.optimizer, tile.values,
                             {.tensors = shared_state(key, tile), .numbers = *found});
    tile.moved = true;
  }
}

}  // namespace tutti
