#include "sync/averaging/worker_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/fold.h"
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

WorkerCopies::Layout::Layout(const Plan& plan, const Buckets& buckets, int states) {
  for (const auto& members : buckets) {
    std::size_t means = 0;
    for (const auto p : members) means += plan.bytes_of(p);
    bytes = std::max(bytes, round_up(means, 64));
  }
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
      layout_(plan, buckets, policy.states()),
      memory_(group_.allocate(layout_.bytes,
                              fmt::format("what {} keeps of \"{}\"", policy.name(), name))),
      wide_before_(kTile * sizeof(double)) {}

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
  group_.all_reduce({memory_.data(), elements_of(plan_, parameters), type}, Reduction::mean,
                    options);
}

std::byte* WorkerCopies::mean(const ElementRange& tile) {
  const auto p = tile.parameter;
  return element(memory_.data() + layout_.places[p].mean, tile.begin, entry_of(p).node_type);
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

/// What the tile was before is what it becomes: has_moved() compares bytes with it.
void WorkerCopies::store(const ElementRange& tile, const std::byte* values) {
  const auto& entry = entry_of(tile.parameter);
  const auto type = entry.spec.dtype;
  const auto count = tile.end - tile.begin;
  auto* const to = element(values_[tile.parameter], tile.begin, type);
  round_into(to, type, values, entry.node_type, count);
  if (type != entry.node_type && !are_finite(to, type, count)) {
    throw Mismatch(
        fmt::format("averaging {}, parameter \"{}\": what its copies become is beyond {}",
                    policy_.name(), entry.spec.name, name_of(type)));
  }
  std::memcpy(element(before_of(tile.parameter), tile.begin, type), to,
              static_cast<std::size_t>(count) * size_of(type));
}

}  // namespace tutti
