#include "sync/averaging/replica_averaging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/fold.h"
#include "kernels/int8_blocks.h"
#include "kernels/norm.h"
#include "sync/plan/fusion.h"

namespace tutti {
namespace {

void fill(void* to, DType type, std::int64_t count, double value) {
  if (type == DType::float64) {
    std::fill_n(static_cast<double*>(to), count, value);
  } else {
    std::fill_n(static_cast<float*>(to), count, static_cast<float>(value));
  }
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

ReplicaAveraging::ReplicaAveraging(StepMemory& memory, const Plan& plan,
                                   const ReplicaCopies& copies, AveragingOptions options)
    : memory_(memory),
      plan_(plan),
      copies_(copies),
      options_(std::move(options)),
      program_(FoldProgram::canonical(static_cast<int>(copies.size()))),
      mean_(kTile * sizeof(double)),
      messages_(sends_int8() ? copies.size() * int8_bytes(kTile) : 0),
      is_flying_(plan.parameters().size()),
      mean_of_messages_(copies.size()),
      rounds_(plan, *options_.averaging, per_replica_parameters(plan), options_.fusion,
              copies.size()) {
  const bool overlaps = options_.averaging->overlap().steps > 0;
  if (!has_before(*options_.averaging) && !overlaps) return;
  const int residuals = sends_int8() ? static_cast<int>(copies.size()) + 1 : 0;
  const int states = options_.averaging->states() + residuals + (overlaps ? 1 : 0);
  kept_ = std::make_unique<SharedModel>(
      memory.group(), plan,
      states_of_replicas(plan, std::vector<int>(plan.parameters().size(), states)), false,
      fmt::format("{}, what {} keeps", options_.name, options_.averaging->name()));
  if (copies.hosts().differ() && (sends_int8() || overlaps)) make_room_for_given();
}

void ReplicaAveraging::restart(std::uint32_t parameter) {
  settle(parameter);
  if (!kept_) return;
  const auto bytes = plan_.bytes_of(parameter);
  if (bytes == 0) return;
  std::memcpy(kept_->master(parameter), copies_.of(0).master(parameter), bytes);
  for (int k = 0; k < kept_->states(parameter); ++k) {
    std::memset(kept_->state(parameter, k), 0, bytes);
  }
  if (!given_ || !sends_int8()) return;
  for (const auto& tile : tiles_of({parameter, 0, plan_.parameters()[parameter].spec.count})) {
    for (std::size_t l = 0; l < copies_.size(); ++l) given_squares(tile, l) = 0;
  }
}

void ReplicaAveraging::settle(std::uint32_t parameter) {
  rounds_.settle(parameter);
  is_flying_[parameter] = 0;
}

void ReplicaAveraging::begin(std::int64_t step, const std::vector<std::int64_t>& updating) {
  rounds_.begin(step);
  takes_off_ = false;
  const bool with_state = options_.state == StateAtAveraging::average;
  for (const auto p : copies_.parameters()) {
    if (updating[p] > 0) {
      rounds_.note_moved(p);
      rounds_.count_gradients(p, updating[p], 1);
    }
    if (!rounds_.is_sent(p)) continue;
    rounds_.count_averaged(p, with_state ? copies_.of(0).states(p) : 0);
  }
}

bool ReplicaAveraging::any_sent() const {
  return std::ranges::any_of(copies_.parameters(),
                             [&](std::uint32_t p) { return rounds_.is_sent(p); });
}

void ReplicaAveraging::receive(const ElementRange& tile) {
  if (!rounds_.arrives(tile.parameter)) return;
  land(tile);
  rounds_.receive(tile, *this);
}

void ReplicaAveraging::land(const ElementRange& tile) {
  if (is_flying_[tile.parameter] != 0) rounds_.land(tile, *this);
}

void ReplicaAveraging::landed() { is_flying_.assign(is_flying_.size(), 0); }

/// From commit() on: in the current step the last mean may arrive.
void ReplicaAveraging::let_fly() { takes_off_ = true; }

void ReplicaAveraging::average(const ElementRange& tile) {
  if (!rounds_.is_sent(tile.parameter)) return;
  rounds_.send(tile, *this);
  if (options_.state != StateAtAveraging::keep) combine_states(tile);
}

void ReplicaAveraging::commit(std::vector<UpdateRules>& rules) {
  rounds_.commit();
  for (const auto p : copies_.parameters()) {
    if (rounds_.is_sent(p)) {
      is_flying_[p] = takes_off_;
    } else if (rounds_.arrives(p)) {
      is_flying_[p] = 0;
    }
  }
  if (options_.state == StateAtAveraging::keep) return;
  for (const auto p : copies_.parameters()) {
    if (!rounds_.is_averaged(p)) continue;
    std::int64_t most = 0;
    for (const auto& one : rules) most = std::max(most, one.updates()[p]);
    for (auto& one : rules) {
      one.updates()[p] = options_.state == StateAtAveraging::average ? most : 0;
    }
  }
}

std::size_t ReplicaAveraging::offset_of(const ElementRange& tile) const {
  const auto type = plan_.parameters()[tile.parameter].node_type;
  return static_cast<std::size_t>(tile.begin) * size_of(type);
}

std::size_t ReplicaAveraging::bytes_of(const ElementRange& tile) const {
  const auto type = plan_.parameters()[tile.parameter].node_type;
  return static_cast<std::size_t>(tile.end - tile.begin) * size_of(type);
}

template <class At>
void ReplicaAveraging::take_mean(const ElementRange& tile, const At& at) {
  std::vector<const void*> sources;
  for (std::size_t l = 0; l < copies_.size(); ++l) sources.push_back(at(l));
  tree_mean(program_, sources, plan_.parameters()[tile.parameter].node_type, tile.end - tile.begin,
            mean_.data());
}

float* ReplicaAveraging::residual(std::uint32_t parameter, std::size_t logical) const {
  const auto k = options_.averaging->states() + static_cast<int>(logical);
  return reinterpret_cast<float*>(kept_->state(parameter, k));
}

std::string ReplicaAveraging::kept_name(int k) const {
  const int residual = k - options_.averaging->states();
  if (residual < 0) return fmt::format("kept.{}", k);
  if (!sends_int8() || residual > static_cast<int>(copies_.size())) {
    return "in_flight";
  }
  if (residual == static_cast<int>(copies_.size())) return "residual.mean";
  return fmt::format("residual.{}", residual);
}

TrafficReport ReplicaAveraging::traffic() const {
  auto report = rounds_.traffic();
  if (!sends_int8()) return report;
  for (std::size_t b = 0; b < rounds_.buckets().size(); ++b) {
    std::vector<double> blocks;
    for (const auto p : rounds_.buckets()[b]) {
      const auto count = plan_.parameters()[p].spec.count;
      std::vector<double> of_one(static_cast<std::size_t>((count + kNormBlock - 1) / kNormBlock));
      for (std::size_t l = 0; l < copies_.size(); ++l) {
        if (given_) {
          const auto tiles = tiles_of({p, 0, count});
          for (std::size_t t = 0; t < tiles.size(); ++t) of_one[t] = given_squares(tiles[t], l);
        } else {
          squares_of_blocks(residual(p, l), DType::float32, count, of_one);
        }
        blocks.insert(blocks.end(), of_one.begin(), of_one.end());
      }
    }
    report.last_step[b].residual_norm = report.all_steps[b].residual_norm =
        std::sqrt(tree_sum(blocks));
  }
  return report;
}

/// What the logical worker sends of the tile, in messages_; what that lacks is kept.
std::byte* ReplicaAveraging::write_message(const ElementRange& tile, std::size_t logical) {
  const auto p = tile.parameter;
  auto* const message = messages_.data() + logical * int8_bytes(kTile);
  const auto* const before = reinterpret_cast<const float*>(kept_->master(p)) + tile.begin;
  const auto* const copy = reinterpret_cast<const float*>(copies_.of(logical).master(p));
  write_difference(message, copy + tile.begin, before, residual(p, logical) + tile.begin,
                   tile.end - tile.begin);
  return message;
}

/// What each logical worker would send is made here, by the one worker that owns the tile; on
/// several hosts it was given.
void ReplicaAveraging::take_mean_of_messages(const ElementRange& tile) {
  const auto p = tile.parameter;
  const auto count = tile.end - tile.begin;
  const auto* const before = reinterpret_cast<const float*>(kept_->master(p)) + tile.begin;
  std::vector<const std::byte*> messages;
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    messages.push_back(given_ ? given_message(tile, l) : write_message(tile, l));
  }
  auto* const mean = reinterpret_cast<float*>(mean_.data());
  mean_of_messages_.take(messages, 0, count, mean);
  add_difference(mean, before, residual(p, copies_.size()) + tile.begin, count);
}

std::byte* ReplicaAveraging::mean(const ElementRange& tile) {
  if (sends_int8()) {
    take_mean_of_messages(tile);
    return mean_.data();
  }
  take_mean(tile, [&](std::size_t l) {
    return given_ ? given_message(tile, l) : copies_.of(l).master(tile.parameter) + offset_of(tile);
  });
  return mean_.data();
}

std::byte* ReplicaAveraging::before(const ElementRange& tile) {
  return kept_->master(tile.parameter) + offset_of(tile);
}

std::byte* ReplicaAveraging::state(const ElementRange& tile, int k) {
  return kept_->state(tile.parameter, k) + offset_of(tile);
}

std::byte* ReplicaAveraging::in_flight(const ElementRange& tile) {
  return kept_->state(tile.parameter, kept_->states(tile.parameter) - 1) + offset_of(tile);
}

void ReplicaAveraging::mix(const ElementRange& tile, const std::byte* values, double own) {
  const auto type = plan_.parameters()[tile.parameter].node_type;
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    const auto& copy = copies_.of(l);
    mix_into(copy.master(tile.parameter) + offset_of(tile), values, type, tile.end - tile.begin,
             own);
    copy.round_values(tile);
  }
}

void ReplicaAveraging::store(const ElementRange& tile, const std::byte* values) {
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    const auto& copy = copies_.of(l);
    std::memcpy(copy.master(tile.parameter) + offset_of(tile), values, bytes_of(tile));
    copy.round_values(tile);
  }
}

/// The optimizer's states become their mean, or what they were at the start.
void ReplicaAveraging::combine_states(const ElementRange& tile) {
  const auto p = tile.parameter;
  for (int k = 0; k < copies_.of(0).states(p); ++k) {
    const auto at = [&](std::size_t l) { return copies_.of(l).state(p, k) + offset_of(tile); };
    if (options_.state == StateAtAveraging::average) {
      take_mean(tile, at);
    } else {
      fill(mean_.data(), plan_.parameters()[p].node_type, tile.end - tile.begin,
           options_.initial_states[p][static_cast<std::size_t>(k)]);
    }
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      std::memcpy(at(l), mean_.data(), bytes_of(tile));
    }
  }
}

}  // namespace tutti
