#include "sync/meetings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// `count` values of the master copy's type, as float64.
void widen(const void* from, DType type, std::span<double> to) {
  if (type == DType::float64) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else {
    const auto* const values = static_cast<const float*>(from);
    std::copy_n(values, to.size(), to.begin());
  }
}

/// Rounded once.
void narrow(std::span<const double> from, void* to, DType type) {
  if (type == DType::float64) {
    std::memcpy(to, from.data(), from.size_bytes());
  } else {
    std::transform(from.begin(), from.end(), static_cast<float*>(to),
                   [](double value) { return static_cast<float>(value); });
  }
}

ParameterGroups groups_of_private(const Plan& plan, std::int64_t fusion) {
  return fuse(private_ones(plan), plan, fusion, fusion);
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

Meetings::Meetings(const Group& group, const Plan& plan, const PrivateCopies& copies,
                   MeetingOptions options)
    : plan_(plan),
      copies_(copies),
      options_(std::move(options)),
      groups_(groups_of_private(plan, options_.fusion)),
      program_(FoldProgram::canonical(static_cast<int>(copies.size()))),
      moved_(plan.parameters().size()),
      due_(plan.parameters().size()),
      mean_(kTile * sizeof(double)),
      traffic_(plan, groups_) {
  const int states = options_.strategy->states();
  wide_.assign(static_cast<std::size_t>(2 + states), std::vector<double>(kTile));
  if (states == 0) return;
  kept_ = std::make_unique<SharedModel>(
      group, plan, states_of_private(plan, std::vector<int>(plan.parameters().size(), states)),
      false, fmt::format("{}, what {} keeps", options_.name, options_.strategy->name()));
}

void Meetings::restart(std::uint32_t parameter) {
  moved_[parameter] = 0;
  if (!kept_) return;
  const auto bytes = plan_.bytes_of(parameter);
  if (bytes == 0) return;
  std::memcpy(kept_->master(parameter), copies_.of(0).master(parameter), bytes);
  for (int k = 0; k < kept_->states(parameter); ++k) {
    std::memset(kept_->state(parameter, k), 0, bytes);
  }
}

void Meetings::begin(std::int64_t step, const std::vector<std::int64_t>& updating) {
  moves_ = moved_;
  any_due_ = false;
  std::fill(due_.begin(), due_.end(), std::uint8_t{0});
  const auto groups = static_cast<std::int64_t>(groups_.size());
  for (std::int64_t g = 0; g < groups; ++g) {
    const bool is_due = options_.strategy->due(step, g, groups);
    any_due_ = any_due_ || is_due;
    for (const auto p : groups_[static_cast<std::size_t>(g)]) {
      if (updating[p] > 0) moves_[p] = 1;
      due_[p] = is_due && moves_[p] != 0;
    }
  }
  note_traffic(updating);
}

/// Beside gradients that every logical worker hands in and gets back in every step.
void Meetings::note_traffic(const std::vector<std::int64_t>& updating) {
  const auto all = static_cast<std::int64_t>(copies_.size());
  traffic_.begin();
  bytes_ = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = traffic_.group(g);
    for (const auto p : groups_[g]) {
      const auto bytes = plan_.bytes_of(p);
      const auto count = plan_.parameters()[p].spec.count;
      if (updating[p] > 0) {
        group.touched += updating[p] * count;
        group.bytes_dense += static_cast<std::uint64_t>(updating[p] + all) * bytes;
      }
      if (!due(p)) continue;
      const bool with_state = options_.state == MeetingState::average;
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
void Meetings::take_mean(DType type, std::int64_t count, const At& at) {
  std::vector<const void*> sources;
  for (std::size_t l = 0; l < copies_.size(); ++l) sources.push_back(at(l));
  tree_mean(program_, sources, type, count, mean_.data());
}

void Meetings::combine(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto count = tile.end - tile.begin;
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  const auto at = [&](std::size_t l) {
    return copies_.of(l).master(p) + static_cast<std::size_t>(tile.begin) * size_of(type);
  };
  take_mean(type, count, at);
  ask_strategy(tile);
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    std::memcpy(at(l), mean_.data(), bytes);
    copies_.of(l).round_values(tile);
  }
  if (options_.state != MeetingState::keep) combine_states(tile);
}

void Meetings::ask_strategy(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto skip = static_cast<std::size_t>(tile.begin) * size_of(type);
  const auto count = static_cast<std::size_t>(tile.end - tile.begin);
  const auto wide = [&](std::size_t k) { return std::span(wide_[k]).first(count); };
  widen(mean_.data(), type, wide(0));
  Meeting meeting{.values = wide(0),
                  .before = {},
                  .logical_workers = static_cast<std::int64_t>(copies_.size()),
                  .states = {}};
  const int states = kept_ ? kept_->states(p) : 0;
  if (kept_) {
    widen(kept_->master(p) + skip, type, wide(1));
    meeting.before = wide(1);
  }
  for (int k = 0; k < states; ++k) {
    const auto state = wide(static_cast<std::size_t>(2 + k));
    widen(kept_->state(p, k) + skip, type, state);
    meeting.states.push_back(state);
  }
  try {
    options_.strategy->combine(meeting);
  } catch (const std::exception& error) {
    throw Mismatch(fmt::format("strategy {}, parameter \"{}\": {}", options_.strategy->name(),
                               plan_.parameters()[p].spec.name, error.what()));
  }
  narrow(meeting.values, mean_.data(), type);
  if (kept_) std::memcpy(kept_->master(p) + skip, mean_.data(), count * size_of(type));
  for (int k = 0; k < states; ++k) {
    narrow(meeting.states[static_cast<std::size_t>(k)], kept_->state(p, k) + skip, type);
  }
}

/// Of the optimizer, where they are not kept.
void Meetings::combine_states(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto count = tile.end - tile.begin;
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  for (int k = 0; k < copies_.of(0).states(p); ++k) {
    const auto at = [&](std::size_t l) {
      return copies_.of(l).state(p, k) + static_cast<std::size_t>(tile.begin) * size_of(type);
    };
    if (options_.state == MeetingState::average) {
      take_mean(type, count, at);
    } else {
      const std::vector<double> initial(static_cast<std::size_t>(count),
                                        options_.initial_states[p]);
      narrow(initial, mean_.data(), type);
    }
    for (std::size_t l = 0; l < copies_.size(); ++l) std::memcpy(at(l), mean_.data(), bytes);
  }
}

void Meetings::commit(std::vector<UpdateRules>& rules) {
  for (const auto p : copies_.parameters()) {
    moved_[p] = moves_[p] != 0 && !due(p);
    if (!due(p) || options_.state == MeetingState::keep) continue;
    std::int64_t most = 0;
    for (const auto& one : rules) most = std::max(most, one.updates()[p]);
    for (auto& one : rules) {
      one.updates()[p] = options_.state == MeetingState::average ? most : 0;
    }
  }
  traffic_.end(bytes_ > 0);
}

}  // namespace tutti
