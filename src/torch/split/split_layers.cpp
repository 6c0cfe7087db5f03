#include "torch/split/split_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/group_state.h"
#include "tutti/error.h"

namespace tutti {
namespace {

enum class Relation { same, apart, partly };

/// Of two groups that this worker is in.
Relation relation_of(const std::vector<int>& one, const std::vector<int>& other) {
  if (one == other) return Relation::same;
  return common_ranks(one, other) <= 1 ? Relation::apart : Relation::partly;
}

}  // namespace

std::int64_t common_ranks(const std::vector<int>& one, const std::vector<int>& other) {
  return std::ranges::count_if(one, [&](int rank) { return std::ranges::count(other, rank) > 0; });
}

SplitLayers find_split_layers(torch::nn::Module& module, const std::vector<int>& ranks) {
  SplitLayers found;
  std::unordered_set<const void*> seen;
  const auto look = [&](const std::string& name, torch::nn::Module& one) {
    auto* const weighted = dynamic_cast<WeightedLayer*>(&one);
    if (weighted == nullptr || !seen.insert(weighted).second) return;
    auto* const split = dynamic_cast<SplitModule*>(&one);
    if (split == nullptr) {
      found.weighted.push_back(weighted);
      return;
    }
    switch (relation_of(ranks, split->group().state()->ranks())) {
      case Relation::apart:
        if (ranks.size() > 1 && split->updates_itself()) {
          throw Unsupported(fmt::format(
              "layer \"{}\" is split over ranks {} and updates itself: its copies on ranks {} "
              "would part; split it over all workers",
              name, fmt::join(split->group().state()->ranks(), " "), fmt::join(ranks, " ")));
        }
        found.of_other_groups.push_back(name);
        return;
      case Relation::partly:
        throw InvalidArgument(fmt::format(
            "layer \"{}\" is split over ranks {}, of which some, not all, are among ranks {}", name,
            fmt::join(split->group().state()->ranks(), " "), fmt::join(ranks, " ")));
      case Relation::same:
        break;
    }
    found.weighted.push_back(weighted);
    found.split.push_back(split);
    for (const auto& parameter : one.named_parameters()) {
      if (!parameter.value().defined()) continue;
      if (!found.tensors.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
      found.parameters.emplace_back(name.empty() ? parameter.key() : name + '.' + parameter.key(),
                                    parameter.value());
    }
    if (const auto anchor = split->anchor(); anchor.defined()) {
      found.parameters.emplace_back(name + ".backward", anchor);
    }
    for (const auto& buffer : one.buffers()) {
      if (buffer.defined()) found.tensors.insert(buffer.unsafeGetTensorImpl());
    }
  };
  module.apply(torch::nn::Module::NamedModuleApplyFunction(look));
  return found;
}

void name_layers(torch::nn::Module& module) {
  const auto give = [](const std::string& name, torch::nn::Module& one) {
    if (auto* const layer = dynamic_cast<WeightedLayer*>(&one)) layer->set_layer_name(name);
  };
  module.apply(torch::nn::Module::NamedModuleApplyFunction(give));
}

}  // namespace tutti
