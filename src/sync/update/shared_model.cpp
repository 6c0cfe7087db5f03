#include "sync/update/shared_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/fold_update.h"
#include "memory/arena.h"

namespace tutti {

std::vector<SharedModel::Place> SharedModel::places_of(const std::vector<int>& states) {
  const auto take = [this](std::size_t room) {
    const auto begin = bytes_;
    bytes_ += room;
    return begin;
  };
  std::vector<Place> places(plan_.parameters().size());
  for (std::size_t p = 0; p < places.size(); ++p) {
    if (states[p] == kNotHere) continue;
    places[p].value = places[p].master = take(plan_.parameters()[p].result_bytes);
  }
  bytes_ = value_bytes_ = round_up(bytes_, kPageBytes);
  for (std::size_t p = 0; p < places.size(); ++p) {
    if (states[p] == kNotHere) continue;
    const auto& entry = plan_.parameters()[p];
    if (entry.spec.dtype != entry.node_type) places[p].master = take(entry.node_bytes);
    places[p].states = states[p];
    places[p].state_bytes = entry.node_bytes;
    places[p].first_state =
        take(entry.node_bytes * static_cast<std::size_t>(states[p] + (averages_ ? 1 : 0)));
  }
  bytes_ = round_up(bytes_, kPageBytes);
  return places;
}

SharedModel::SharedModel(const Group& group, const Plan& plan, const std::vector<int>& states,
                         bool averages, const std::string& name)
    : plan_(plan),
      averages_(averages),
      places_(places_of(states)),
      memory_(group.allocate_common(
          bytes_, fmt::format("parameters and optimizer state of \"{}\"", name))) {}

std::byte* SharedModel::state(std::size_t parameter, int k) const {
  const auto& place = places_[parameter];
  return at(place.first_state + place.state_bytes * static_cast<std::size_t>(k));
}

UpdateTarget SharedModel::target(const ElementRange& range) const {
  const auto p = range.parameter;
  const auto type = plan_.parameters()[p].node_type;
  const auto skip = static_cast<std::size_t>(range.begin) * size_of(type);
  UpdateTarget target{
      .dtype = type, .parameter = master(p) + skip, .count = range.end - range.begin};
  const int here = std::min(states(p), static_cast<int>(kMaxStates));
  for (int k = 0; k < here; ++k) target.states[static_cast<std::size_t>(k)] = state(p, k) + skip;
  return target;
}

void SharedModel::update(const ElementRange& range, const Fold& fold, const UpdateTarget& target,
                         PreparedUpdate by) const {
  const auto p = range.parameter;
  FoldUpdate work{.fold = fold, .target = target, .update = std::move(by)};
  if (master(p) != value(p)) {
    work.rounded_type = plan_.parameters()[p].spec.dtype;
    work.rounded = value(p) + static_cast<std::size_t>(range.begin) * size_of(work.rounded_type);
  }
  fold_update(work);
}

void SharedModel::round_values(const ElementRange& range) const {
  const auto p = range.parameter;
  if (master(p) == value(p)) return;
  const auto element = size_of(plan_.parameters()[p].node_type);
  round_values(range, master(p) + static_cast<std::size_t>(range.begin) * element);
}

void SharedModel::round_values(const ElementRange& range, const std::byte* from) const {
  const auto& entry = plan_.parameters()[range.parameter];
  round_into(
      value(range.parameter) + static_cast<std::size_t>(range.begin) * size_of(entry.spec.dtype),
      entry.spec.dtype, from, entry.node_type, range.end - range.begin);
}

void SharedModel::refresh_masters() const {
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (places_[p].master == places_[p].value) continue;
    const auto count = plan_.parameters()[p].spec.count;
    for (const auto& tile : tiles_of({static_cast<std::uint32_t>(p), 0, count})) {
      refresh_masters(tile);
    }
  }
}

/// A master copy that rounds to its value stays.
void SharedModel::refresh_masters(const ElementRange& tile) const {
  const auto& entry = plan_.parameters()[tile.parameter];
  const auto type = entry.spec.dtype;
  const auto begin = static_cast<std::size_t>(tile.begin);
  const auto count = static_cast<std::size_t>(tile.end - tile.begin);
  auto* const masters = reinterpret_cast<float*>(master(tile.parameter)) + begin;
  const auto* const values = value(tile.parameter) + begin * size_of(type);
  std::vector<std::uint16_t> rounded(count);
  std::vector<float> widened(count);
  round_into(rounded.data(), type, masters, entry.node_type, tile.end - tile.begin);
  scale_into(widened.data(), entry.node_type, values, type, tile.end - tile.begin, 1.0);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(&rounded[i], values + i * sizeof rounded[i], sizeof rounded[i]) != 0) {
      masters[i] = widened[i];
    }
  }
}

}  // namespace tutti
