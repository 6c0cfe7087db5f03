#include "sync/averaging/averaging_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/hash.h"
#include "kernels/int8_blocks.h"
#include "sync/plan/fragments.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Fills `fragment_of` for each bucket; without fragments each bucket is one by itself.
Buckets averaged_buckets(const Plan& plan, const AveragingPolicy& policy,
                         std::span<const std::uint32_t> parameters, std::int64_t fusion,
                         std::vector<std::size_t>& fragment_of) {
  const auto fragments = policy.fragments();
  if (fragments == 0) {
    auto buckets = fuse(parameters, plan, fusion, fusion);
    fragment_of.resize(buckets.size());
    std::iota(fragment_of.begin(), fragment_of.end(), std::size_t{0});
    return buckets;
  }
  if (parameters.empty()) return {};
  if (static_cast<std::size_t>(fragments) > parameters.size()) {
    throw InvalidArgument(fmt::format("averaging {}: {} fragments of {} parameters", policy.name(),
                                      fragments, parameters.size()));
  }
  std::vector<std::size_t> bytes;
  for (const auto p : parameters) bytes.push_back(plan.bytes_of(p));
  Buckets buckets;
  std::size_t begin = 0;
  std::size_t fragment = 0;
  for (const auto count : fragment_counts(bytes, static_cast<std::size_t>(fragments))) {
    for (auto& bucket : fuse(parameters.subspan(begin, count), plan, fusion, fusion)) {
      buckets.push_back(std::move(bucket));
      fragment_of.push_back(fragment);
    }
    begin += count;
    ++fragment;
  }
  return buckets;
}

void require_types(const Plan& plan, const AveragingPolicy& policy,
                   std::span<const std::uint32_t> parameters) {
  if (!policy.sends_int8()) return;
  for (const auto p : parameters) {
    const auto& entry = plan.parameters()[p];
    if (entry.node_type == DType::float32) continue;
    throw Unsupported(fmt::format(
        "averaging {}: parameter \"{}\" is {}; 8-bit differences are of float32, float16 and "
        "bfloat16",
        policy.name(), entry.spec.name, name_of(entry.spec.dtype)));
  }
}

}  // namespace

bool has_before(const AveragingPolicy& policy) {
  return policy.states() > 0 || policy.sends_int8();
}

AveragingRounds::AveragingRounds(const Plan& plan, const AveragingPolicy& policy,
                                 std::span<const std::uint32_t> parameters, std::int64_t fusion,
                                 std::size_t replicas)
    : plan_(plan),
      policy_(policy),
      overlap_(policy.overlap()),
      replicas_(static_cast<std::int64_t>(replicas)),
      buckets_(averaged_buckets(plan, policy, parameters, fusion, fragment_of_)),
      bucket_of_(plan.parameters().size()),
      due_(plan.parameters().size()),
      moved_(plan.parameters().size()),
      moves_(plan.parameters().size()),
      in_flight_(overlap_.steps > 0 ? plan.parameters().size() : 0),
      arrives_(plan.parameters().size()),
      call_(policy, replicas_, kTile),
      traffic_(plan, buckets_) {
  require_types(plan, policy, parameters);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const auto p : buckets_[b]) bucket_of_[p] = b;
  }
}

bool AveragingRounds::is_due(std::int64_t step, std::size_t bucket) const {
  return policy_.due(step, static_cast<std::int64_t>(fragment_of_[bucket]),
                     static_cast<std::int64_t>(fragment_of_.back() + 1));
}

std::uint64_t AveragingRounds::decision_of(std::int64_t step) const {
  std::vector<std::uint8_t> due(buckets_.size());
  for (std::size_t b = 0; b < due.size(); ++b) due[b] = is_due(step, b) ? 1 : 0;
  return digest(due.data(), due.size());
}

void AveragingRounds::begin(std::int64_t step) {
  step_ = step;
  moves_ = moved_;
  due_buckets_.clear();
  std::fill(due_.begin(), due_.end(), std::uint8_t{0});
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!is_due(step, b)) continue;
    due_buckets_.push_back(b);
    for (const auto p : buckets_[b]) due_[p] = 1;
  }
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    const bool flies = in_flight_[p] != 0;
    arrives_[p] = flies && arrives_of(in_flight_[p]);
    if (flies && arrives_[p] == 0) due_[p] = 0;
  }
  traffic_.begin();
  bytes_ = 0;
}

void AveragingRounds::receive(const ElementRange& tile, AveragedCopies& copies) {
  auto* const values = copies.in_flight(tile);
  ask(in_flight_[tile.parameter], tile, values, copies);
  copies.mix(tile, values, overlap_.own);
}

void AveragingRounds::land(const ElementRange& tile, AveragedCopies& copies) const {
  const auto type = plan_.parameters()[tile.parameter].node_type;
  const auto* const mean = copies.mean(tile);
  std::memcpy(copies.in_flight(tile), mean,
              static_cast<std::size_t>(tile.end - tile.begin) * size_of(type));
}

void AveragingRounds::send(const ElementRange& tile, AveragedCopies& copies) {
  if (overlaps()) return land(tile, copies);
  auto* const mean = copies.mean(tile);
  ask(step_, tile, mean, copies);
  copies.store(tile, mean);
}

/// The mean `values`, which was taken in `step`, becomes what the policy makes of it.
void AveragingRounds::ask(std::int64_t step, const ElementRange& tile, std::byte* values,
                          AveragedCopies& copies) {
  const auto& entry = plan_.parameters()[tile.parameter];
  PolicyPiece piece{.type = entry.node_type,
                    .count = tile.end - tile.begin,
                    .values = values,
                    .before = nullptr,
                    .states = {}};
  const int states = policy_.states();
  if (has_before(policy_)) piece.before = copies.before(tile);
  for (int k = 0; k < states; ++k) piece.states.push_back(copies.state(tile, k));
  call_.ask(step, entry.spec.name, piece);
}

void AveragingRounds::commit() {
  for (std::uint32_t p = 0; p < moved_.size(); ++p) {
    moved_[p] = !is_sent(p) && (moves_[p] != 0 || arrives(p));
    if (in_flight_.empty()) continue;
    if (is_sent(p) && overlaps()) {
      in_flight_[p] = step_;
    } else if (arrives(p)) {
      in_flight_[p] = 0;
    }
  }
  traffic_.end(bytes_ > 0 ? 1 : 0);
}

void AveragingRounds::settle(std::uint32_t parameter) {
  moved_[parameter] = 0;
  if (!in_flight_.empty()) in_flight_[parameter] = 0;
}

void AveragingRounds::count_averaged(std::uint32_t parameter, int states, std::int64_t back) {
  const auto count = plan_.parameters()[parameter].spec.count;
  const auto as_it_is = plan_.bytes_of(parameter);
  const auto sent = (policy_.sends_int8() ? int8_bytes(count) : as_it_is) +
                    static_cast<std::size_t>(states) * as_it_is;
  auto& traffic = traffic_of(parameter);
  traffic.messages = traffic.dense_messages = replicas_;
  traffic.values += replicas_ * count;
  traffic.bytes += static_cast<std::uint64_t>(replicas_ * (1 + back)) * sent;
  bytes_ += sent;
}

void AveragingRounds::count_gradients(std::uint32_t parameter, std::int64_t senders,
                                      std::int64_t steps) {
  auto& traffic = traffic_of(parameter);
  traffic.touched += senders * plan_.parameters()[parameter].spec.count;
  traffic.bytes_dense +=
      static_cast<std::uint64_t>(steps * (senders + replicas_)) * plan_.bytes_of(parameter);
}

}  // namespace tutti
