#include "sync/averaging/parameter_averaging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void fill(void* to, DType type, std::int64_t count, double value) {
  if (type == DType::float64) {
    std::fill_n(static_cast<double*>(to), count, value);
  } else {
    std::fill_n(static_cast<float*>(to), count, static_cast<float>(value));
  }
}

Buckets groups_of_replicas(const Plan& plan, std::int64_t fusion) {
  return fuse(per_replica_parameters(plan), plan, fusion, fusion);
}

}  // namespace

void tree_mean(const FoldProgram& tree, std::span<const void* const> sources, DType type,
               std::int64_t count, void* to) {
  fold({.program = &tree,
        .source_type = type,
        .result_type = type,
        .divisor = static_cast<double>(sources.size()),
        .sources = sources,
        .destinations = {&to, 1},
        .count = count});
}

ParameterAveraging::ParameterAveraging(const Group& group, const Plan& plan,
                                       const ReplicaCopies& copies, AveragingOptions options)
    : plan_(plan),
      copies_(copies),
      options_(std::move(options)),
      groups_(groups_of_replicas(plan, options_.fusion)),
      program_(FoldProgram::canonical(static_cast<int>(copies.size()))),
      moved_(plan.parameters().size()),
      due_(plan.parameters().size()),
      mean_(kTile * sizeof(double)),
      call_(*options_.averaging, static_cast<std::int64_t>(copies.size()), kTile),
      traffic_(plan, groups_) {
  const int states = options_.averaging->states();
  if (states == 0) return;
  kept_ = std::make_unique<SharedModel>(
      group, plan, states_of_replicas(plan, std::vector<int>(plan.parameters().size(), states)),
      false, fmt::format("{}, what {} keeps", options_.name, options_.averaging->name()));
}

void ParameterAveraging::restart(std::uint32_t parameter) {
  moved_[parameter] = 0;
  if (!kept_) return;
  const auto bytes = plan_.bytes_of(parameter);
  if (bytes == 0) return;
  std::memcpy(kept_->master(parameter), copies_.of(0).master(parameter), bytes);
  for (int k = 0; k < kept_->states(parameter); ++k) {
    std::memset(kept_->state(parameter, k), 0, bytes);
  }
}

void ParameterAveraging::begin(std::int64_t step, const std::vector<std::int64_t>& updating) {
  moves_ = moved_;
  any_due_ = false;
  std::fill(due_.begin(), due_.end(), std::uint8_t{0});
  const auto groups = static_cast<std::int64_t>(groups_.size());
  for (std::int64_t g = 0; g < groups; ++g) {
    const bool is_due = options_.averaging->due(step, g, groups);
    any_due_ = any_due_ || is_due;
    for (const auto p : groups_[static_cast<std::size_t>(g)]) {
      if (updating[p] > 0) moves_[p] = 1;
      due_[p] = is_due && moves_[p] != 0;
    }
  }
  note_traffic(updating);
}

/// Beside gradients that every logical worker hands in and gets back in every step.
void ParameterAveraging::note_traffic(const std::vector<std::int64_t>& updating) {
  const auto all = static_cast<std::int64_t>(copies_.size());
  traffic_.begin();
  bytes_ = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = traffic_.bucket(g);
    for (const auto p : groups_[g]) {
      const auto bytes = plan_.bytes_of(p);
      const auto count = plan_.parameters()[p].spec.count;
      if (updating[p] > 0) {
        group.touched += updating[p] * count;
        group.bytes_dense += static_cast<std::uint64_t>(updating[p] + all) * bytes;
      }
      if (!due(p)) continue;
      const bool with_state = options_.state == StateAtAveraging::average;
      const int tensors = 1 + (with_state ? copies_.of(0).states(p) : 0);
      const auto sent = bytes * static_cast<std::uint64_t>(tensors);
      group.messages = group.dense_messages = all;
      group.values += all * count;
      group.bytes += static_cast<std::uint64_t>(2 * all) * sent;
      bytes_ += sent;
    }
  }
}

template <class At>
void ParameterAveraging::take_mean(DType type, std::int64_t count, const At& at) {
  std::vector<const void*> sources;
  for (std::size_t l = 0; l < copies_.size(); ++l) sources.push_back(at(l));
  tree_mean(program_, sources, type, count, mean_.data());
}

void ParameterAveraging::combine(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto count = tile.end - tile.begin;
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  const auto at = [&](std::size_t l) {
    return copies_.of(l).master(p) + static_cast<std::size_t>(tile.begin) * size_of(type);
  };
  take_mean(type, count, at);
  ask_policy(tile);
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    std::memcpy(at(l), mean_.data(), bytes);
    copies_.of(l).round_values(tile);
  }
  if (options_.state != StateAtAveraging::keep) combine_states(tile);
}

void ParameterAveraging::ask_policy(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto& entry = plan_.parameters()[p];
  const auto skip = static_cast<std::size_t>(tile.begin) * size_of(entry.node_type);
  PolicyPiece piece{.type = entry.node_type,
                    .count = tile.end - tile.begin,
                    .values = mean_.data(),
                    .before = nullptr,
                    .states = {}};
  if (kept_) {
    piece.before = kept_->master(p) + skip;
    for (int k = 0; k < kept_->states(p); ++k) piece.states.push_back(kept_->state(p, k) + skip);
  }
  call_.ask(entry.spec.name, piece);
}

/// Of the optimizer, where they are not kept.
void ParameterAveraging::combine_states(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto count = tile.end - tile.begin;
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  for (int k = 0; k < copies_.of(0).states(p); ++k) {
    const auto at = [&](std::size_t l) {
      return copies_.of(l).state(p, k) + static_cast<std::size_t>(tile.begin) * size_of(type);
    };
    if (options_.state == StateAtAveraging::average) {
      take_mean(type, count, at);
    } else {
      fill(mean_.data(), type, count, options_.initial_states[p][static_cast<std::size_t>(k)]);
    }
    for (std::size_t l = 0; l < copies_.size(); ++l) std::memcpy(at(l), mean_.data(), bytes);
  }
}

void ParameterAveraging::commit(std::vector<UpdateRules>& rules) {
  for (const auto p : copies_.parameters()) {
    moved_[p] = moves_[p] != 0 && !due(p);
    if (!due(p) || options_.state == StateAtAveraging::keep) continue;
    std::int64_t most = 0;
    for (const auto& one : rules) most = std::max(most, one.updates()[p]);
    for (auto& one : rules) {
      one.updates()[p] = options_.state == StateAtAveraging::average ? most : 0;
    }
  }
  traffic_.end(bytes_ > 0 ? 1 : 0);
}

}  // namespace tutti
