#include "sync/plan/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// How many shards all workers together may take beyond the least time: bounds the cuts that are
/// tried.
constexpr double kMaxSlack = 512;

void validate(std::int64_t shards, std::span<const double> speeds, double tolerance) {
  if (shards < 1 || speeds.empty()) {
    throw InvalidArgument(
        fmt::format("{} shards cannot be assigned to {} workers: both must be 1 or more", shards,
                    speeds.size()));
  }
  for (std::size_t w = 0; w < speeds.size(); ++w) {
    if (speeds[w] > 0 && std::isfinite(speeds[w])) continue;
    throw InvalidArgument(
        fmt::format("rank {} has speed {}: must be positive and finite", w, speeds[w]));
  }
  if (!(tolerance >= 0))
    throw InvalidArgument(fmt::format("tolerance {}: must not be negative", tolerance));
}

/// Least time in which all shards can be computed: each goes to the worker that would finish it
/// first, which is optimal because they are all of one length.
double least_time(std::int64_t shards, std::span<const double> speeds) {
  using Next = std::pair<double, std::size_t>;  // when a worker would be done with one more
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  std::vector<std::int64_t> counts(speeds.size(), 0);
  for (std::size_t w = 0; w < speeds.size(); ++w) next.emplace(1 / speeds[w], w);
  double time = 0;
  for (std::int64_t s = 0; s < shards; ++s) {
    const auto [done, w] = next.top();
    next.pop();
    time = done;
    ++counts[w];
    next.emplace(static_cast<double>(counts[w] + 1) / speeds[w], w);
  }
  return time;
}

/// The least cost of covering the shards after a cut, and the next cut of that solution.
struct Rest {
  int nodes = std::numeric_limits<int>::max();
  double time = 0;
  std::int64_t next = 0;
  bool better_than(const Rest& other) const {
    return std::tie(nodes, time) < std::tie(other.nodes, other.time);
  }
};

/// Worker w begins at a cut in [first[w], last[w]], given how many shards each may take at most.
struct Cuts {
  Cuts(std::int64_t shards, std::span<const std::int64_t> most)
      : first(most.size() + 1, 0), last(most.size() + 1, 0) {
    const auto workers = most.size();
    for (std::size_t w = 0; w < workers; ++w) last[w + 1] = std::min(shards, last[w] + most[w]);
    first[workers] = shards;
    for (std::size_t w = workers; w-- > 1;) {
      first[w] = std::max<std::int64_t>(0, first[w + 1] - most[w]);
    }
  }
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> last;
};

}  // namespace

std::vector<ShardRange> assign_shards(std::int64_t shards, std::span<const double> speeds,
                                      double tolerance) {
  validate(shards, speeds, tolerance);
  const auto workers = speeds.size();
  const double allowed = least_time(shards, speeds) *
                         (1 + std::min(tolerance, kMaxSlack / static_cast<double>(shards)));
  const auto time_of = [&](std::int64_t count, std::size_t w) {
    return static_cast<double>(count) / speeds[w];
  };
  std::vector<std::int64_t> most(workers);
  for (std::size_t w = 0; w < workers; ++w) {
    most[w] =
        static_cast<std::int64_t>(std::min(static_cast<double>(shards), allowed * speeds[w] + 1));
    while (time_of(most[w], w) > allowed) --most[w];
  }

  const Cuts cuts(shards, most);
  const auto at = [&](std::size_t w, std::int64_t cut) {
    return static_cast<std::size_t>(cut - cuts.first[w]);
  };
  std::vector<std::vector<Rest>> rest(workers + 1);
  rest[workers] = {Rest{0, 0, shards}};
  for (std::size_t w = workers; w-- > 0;) {
    rest[w].resize(at(w, cuts.last[w]) + 1);
    for (std::int64_t begin = cuts.first[w]; begin <= cuts.last[w]; ++begin) {
      auto& best = rest[w][at(w, begin)];
      const auto nearest = std::max(begin, cuts.first[w + 1]);
      // Downwards, so that of equals the longest range wins.
      for (auto end = std::min(cuts.last[w + 1], begin + most[w]); end >= nearest; --end) {
        const auto& after = rest[w + 1][at(w + 1, end)];
        const Rest found{node_count({begin, end}) + after.nodes,
                         std::max(time_of(end - begin, w), after.time), end};
        if (found.better_than(best)) best = found;
      }
    }
  }
  std::vector<ShardRange> ranges;
  std::int64_t begin = 0;
  for (std::size_t w = 0; w < workers; ++w) {
    const auto end = rest[w][at(w, begin)].next;
    ranges.push_back({begin, end});
    begin = end;
  }
  TUTTI_CHECK(begin == shards, "{} of {} shards are assigned", begin, shards);
  return ranges;
}

std::vector<ShardRange> assign_shards(std::int64_t shards, int workers, double tolerance) {
  const std::vector<double> speeds(static_cast<std::size_t>(std::max(workers, 0)), 1.0);
  return assign_shards(shards, speeds, tolerance);
}

/// The range climbs from its begin to the number in it with most zeros at the end, by one block per
/// bit of the distance, and from there down to its end likewise.
int node_count(const ShardRange& range) {
  const auto begin = static_cast<std::uint64_t>(range.begin);
  const auto end = static_cast<std::uint64_t>(range.end);
  if (begin == end) return 0;
  const auto peak = end & ~(std::bit_floor(begin ^ end) - 1);
  return std::popcount(peak - begin) + std::popcount(end - peak);
}

int nodes_in_flight(const ShardRange& range) {
  int most = 0;
  for (auto leaf = range.begin; leaf < range.end; ++leaf) {
    most = std::max(most, node_count({range.begin, leaf}) + 1);
  }
  return most;
}

int max_nodes(std::int64_t shards) {
  TUTTI_CHECK(shards >= 1, "nodes of {} shards", shards);
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(shards)));
  return 2 * (bits - 1) + 1;
}

}  // namespace tutti
