#include "comm/channels.h"

#include <algorithm>

#include <fmt/format.h>

#include "comm/communicator.h"
#include "comm/local/group_lanes.h"
#include "tutti/error.h"

namespace tutti {

void Channels::check(std::span<const std::pair<int, int>> pairs) const {
  for (const auto& [one, other] : pairs) {
    if (std::min(one, other) < 0 || std::max(one, other) >= group_.size() || one == other) {
      throw InvalidArgument(
          fmt::format("connect: {} and {} are not two of the {} ranks of group \"{}\"", one, other,
                      group_.size(), group_.name()));
    }
  }
}

void Channels::connect(std::span<const std::pair<int, int>> pairs) try {
  for (const auto& [one, other] : pairs) {
    const auto [low, high] = std::minmax({one, other});
    if (group_.rank() != low && group_.rank() != high) continue;
    for (const auto& [from, to] : {std::pair{low, high}, std::pair{high, low}}) {
      auto& way = ways_[{from, to}];
      if (!way) way = new_way(from, to);
    }
  }
} catch (...) {
  // Members that know nothing of the lost one wait for this member in ways of their own.
  group_.collectives().end_with_current_exception();
  throw;
}

std::shared_ptr<GroupState> Channels::new_way(int from, int to) const {
  const auto rank_of = [this](int member) {
    return group_.ranks()[static_cast<std::size_t>(member)];
  };
  const auto [low, high] = std::minmax({rank_of(from), rank_of(to)});
  return make_({low, high},
               fmt::format("{}, from rank {} to {}", group_.name(), rank_of(from), rank_of(to)),
               [this] { group_.collectives().check(); });
}

const std::shared_ptr<GroupState>& Channels::way(int from, int to) const {
  const auto found = ways_.find({from, to});
  if (found != ways_.end()) return found->second;
  throw InvalidArgument(fmt::format(
      "a message from rank {} to rank {} of group \"{}\": connect() has not been called for them",
      from, to, group_.name()));
}

}  // namespace tutti
