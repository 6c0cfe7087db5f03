#include "sync/averaging/worker_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/fold.h"
#include "kernels/int8_blocks.h"
#include "memory/arena.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::byte* element(std::byte* first, std::int64_t index, DType type) {
  return first + static_cast<std::size_t>(index) * size_of(type);
}

bool are_finite(const void* values, DType type, std::int64_t count) {
  return std::isfinite(largest_magnitude(values, type, count));
}

}  // namespace

WorkerCopies::Layout::Layout(const Plan& plan, const Buckets& buckets,
                             const AveragingPolicy& policy, int workers) {
  std::size_t message_bytes = 0;
  for (const auto& members : buckets) {
    std::size_t means = 0;
    std::size_t sent = 0;
    for (const auto p : members) {
      means += plan.bytes_of(p);
      sent += int8_bytes(plan.parameters()[p].spec.count);
    }
    bytes = std::max(bytes, round_up(means, 64));
    message_bytes = std::max(message_bytes, sent);
  }
  messages = bytes;
  if (policy.sends_int8()) {
    bytes += round_up(static_cast<std::size_t>(workers) * message_bytes, 64);
  }
  const int states =
      policy.states() + (policy.sends_int8() ? 2 : 0) + (policy.overlap().steps > 0 ? 1 : 0);
  for (const auto& entry : plan.parameters()) {
    auto& place = places.emplace_back();
    place.before = bytes;
    place.first_state = place.before + entry.result_bytes;
    bytes = place.first_state + static_cast<std::size_t>(states) * entry.node_bytes;
  }
}

WorkerCopies::WorkerCopies(const Group& group, const Plan& plan, const AveragingPolicy& policy,
                           const Buckets& buckets, std::vector<std::byte*> values,
                           const std::string& name)
    : group_(group),
      plan_(plan),
      policy_(policy),
      values_(std::move(values)),
      layout_(plan, buckets, policy, group.size()),
      memory_(group_.allocate(layout_.bytes,
                              fmt::format("what {} keeps of \"{}\"", policy.name(), name))),
      wide_before_(kTile * sizeof(double)),
      wide_copy_(kTile),
      mean_of_messages_(static_cast<std::size_t>(group.size())) {}

std::size_t WorkerCopies::bytes_of(std::uint32_t parameter) const {
  const auto& spec = entry_of(parameter).spec;
  return static_cast<std::size_t>(spec.count) * size_of(spec.dtype);
}

void WorkerCopies::restart() {
  for (std::uint32_t p = 0; p < values_.size(); ++p) {
    if (bytes_of(p) > 0) std::memcpy(before_of(p), values_[p], bytes_of(p));
  }
}

bool WorkerCopies::has_moved(std::uint32_t parameter) const {
  const auto bytes = bytes_of(parameter);
  return bytes > 0 && std::memcmp(values_[parameter], before_of(parameter), bytes) != 0;
}

bool WorkerCopies::is_finite(std::uint32_t parameter) const {
  const auto& spec = entry_of(parameter).spec;
  return are_finite(values_[parameter], spec.dtype, spec.count);
}

std::int64_t WorkerCopies::messages_back() const {
  return policy_.sends_int8() ? group_.size() - 1 : 1;
}

float* WorkerCopies::residual(const ElementRange& tile, Residual which) {
  const int k = policy_.states() + (which == Residual::own ? 0 : 1);
  return reinterpret_cast<float*>(state(tile, k));
}

std::byte* WorkerCopies::message_of(int rank, std::uint32_t parameter) const {
  return memory_.data() + layout_.messages + static_cast<std::size_t>(rank) * message_bytes_ +
         layout_.places[parameter].message;
}

void WorkerCopies::write_messages(std::uint32_t parameter) {
  const auto& spec = entry_of(parameter).spec;
  for (const auto& tile : tiles_of({parameter, 0, spec.count})) {
    const auto count = tile.end - tile.begin;
    scale_into(wide_copy_.data(), DType::float32,
               element(values_[parameter], tile.begin, spec.dtype), spec.dtype, count, 1.0);
    write_difference(message_of(group_.rank(), parameter) + int8_bytes(tile.begin),
                     wide_copy_.data(), reinterpret_cast<const float*>(before(tile)),
                     residual(tile, Residual::own), count);
  }
}

void WorkerCopies::all_gather(std::span<const std::uint32_t> parameters,
                              const CollectiveOptions& options) {
  message_bytes_ = 0;
  for (const auto p : parameters) {
    layout_.places[p].message = message_bytes_;
    message_bytes_ += int8_bytes(entry_of(p).spec.count);
  }
  for (const auto p : parameters) write_messages(p);
  const auto count = static_cast<std::int64_t>(message_bytes_);
  const auto first = parameters.front();
  group_.all_gather({message_of(group_.rank(), first), count, DType::uint8},
                    {message_of(0, first), count * group_.size(), DType::uint8}, options);
}

void WorkerCopies::all_reduce(std::span<const std::uint32_t> parameters,
                              const CollectiveOptions& options) {
  const auto type = entry_of(parameters.front()).node_type;
  std::size_t end = 0;
  for (const auto p : parameters) {
    const auto& spec = entry_of(p).spec;
    layout_.places[p].mean = end;
    scale_into(memory_.data() + end, type, values_[p], spec.dtype, spec.count, 1.0);
    end += plan_.bytes_of(p);
  }
  if (policy_.sends_int8()) return all_gather(parameters, options);
  group_.all_reduce({memory_.data(), elements_of(plan_, parameters), type}, Reduction::mean,
                    options);
}

std::byte* WorkerCopies::mean(const ElementRange& tile) {
  const auto p = tile.parameter;
  auto* const mean =
      element(memory_.data() + layout_.places[p].mean, tile.begin, entry_of(p).node_type);
  if (!policy_.sends_int8()) return mean;
  std::vector<const std::byte*> messages;
  for (int r = 0; r < group_.size(); ++r) messages.push_back(message_of(r, p));
  const auto count = tile.end - tile.begin;
  auto* const values = reinterpret_cast<float*>(mean);
  mean_of_messages_.take(messages, tile.begin, count, values);
  add_difference(values, reinterpret_cast<const float*>(before(tile)),
                 residual(tile, Residual::mean), count);
  return mean;
}

std::byte* WorkerCopies::before(const ElementRange& tile) {
  const auto& entry = entry_of(tile.parameter);
  const auto type = entry.spec.dtype;
  scale_into(wide_before_.data(), entry.node_type,
             element(before_of(tile.parameter), tile.begin, type), type, tile.end - tile.begin,
             1.0);
  return wide_before_.data();
}

std::byte* WorkerCopies::state(const ElementRange& tile, int k) {
  const auto& entry = entry_of(tile.parameter);
  auto* const first = memory_.data() + layout_.places[tile.parameter].first_state +
                      static_cast<std::size_t>(k) * entry.node_bytes;
  return element(first, tile.begin, entry.node_type);
}

std::byte* WorkerCopies::in_flight(const ElementRange& tile) {
  return state(tile, policy_.states() + (policy_.sends_int8() ? 2 : 0));
}

/// What the tile was before is what it becomes: has_moved() compares bytes with it.
void WorkerCopies::round_into_before(const ElementRange& tile, const std::byte* values) {
  const auto& entry = entry_of(tile.parameter);
  const auto type = entry.spec.dtype;
  const auto count = tile.end - tile.begin;
  auto* const to = element(before_of(tile.parameter), tile.begin, type);
  round_into(to, type, values, entry.node_type, count);
  if (type != entry.node_type && !are_finite(to, type, count)) {
    throw Mismatch(
        fmt::format("averaging {}, parameter \"{}\": what its copies become is beyond {}",
                    policy_.name(), entry.spec.name, name_of(type)));
  }
}

void WorkerCopies::store(const ElementRange& tile, const std::byte* values) {
  round_into_before(tile, values);
  const auto type = entry_of(tile.parameter).spec.dtype;
  std::memcpy(element(values_[tile.parameter], tile.begin, type),
              element(before_of(tile.parameter), tile.begin, type),
              static_cast<std::size_t>(tile.end - tile.begin) * size_of(type));
}

void WorkerCopies::mix(const ElementRange& tile, const std::byte* values, double own) {
  round_into_before(tile, values);
  const auto& entry = entry_of(tile.parameter);
  const auto type = entry.spec.dtype;
  const auto count = tile.end - tile.begin;
  auto* const copy = element(values_[tile.parameter], tile.begin, type);
  if (type == entry.node_type) return mix_into(copy, values, type, count, own);
  auto* const wide = reinterpret_cast<std::byte*>(wide_copy_.data());
  scale_into(wide, DType::float32, copy, type, count, 1.0);
  mix_into(wide, values, DType::float32, count, own);
  round_into(copy, type, wide, DType::float32, count);
}

}  // namespace tutti
