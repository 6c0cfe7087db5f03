#include "sync/nodes/logical_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/error.h"

namespace tutti {
namespace {

template <class Belongs>
std::vector<NodeRange> ranges_of(std::span<const HeldNode> held, std::size_t count,
                                 const Belongs& belongs) {
  std::vector<NodeRange> ranges;
  std::size_t n = 0;
  for (std::size_t l = 0; l < count; ++l) {
    const auto begin = n;
    while (n < held.size() && belongs(held[n], l)) ++n;
    ranges.push_back({begin, n});
  }
  return ranges;
}

}  // namespace

std::vector<ShardRange> logical_workers(std::int64_t shards, std::int64_t count) {
  if (count < 1 || count > kMaxLogicalWorkers) {
    throw InvalidArgument(
        fmt::format("{} logical workers: must be 1 to {}", count, kMaxLogicalWorkers));
  }
  if (count > shards) {
    throw InvalidArgument(fmt::format(
        "{} logical workers of {} shards: each is a node of the tree over the shards, so there are "
        "at most as many",
        count, shards));
  }
  std::vector<ShardRange> nodes = {{0, shards}};
  while (static_cast<std::int64_t>(nodes.size()) < count) {
    const auto largest = std::max_element(
        nodes.begin(), nodes.end(),
        [](const ShardRange& a, const ShardRange& b) { return a.count() < b.count(); });
    const ShardRange right = {largest->begin + left_leaves(largest->count()), largest->end};
    largest->end = right.begin;
    nodes.insert(largest + 1, right);
  }
  return nodes;
}

std::vector<std::vector<int>> carriers_of(std::span<const ShardRange> logical,
                                          std::span<const ShardRange> carried) {
  std::vector<std::vector<int>> carriers;
  for (const auto& leaves : logical) {
    auto& mine = carriers.emplace_back();
    for (std::size_t r = 0; r < carried.size(); ++r) {
      const auto& range = carried[r];
      if (std::max(range.begin, leaves.begin) < std::min(range.end, leaves.end)) {
        mine.push_back(static_cast<int>(r));
      }
    }
  }
  return carriers;
}

std::vector<bool> on_one_host(std::span<const ShardRange> logical,
                              std::span<const ShardRange> carried, std::span<const int> hosts) {
  std::vector<bool> is_on_one;
  for (const auto& carriers : carriers_of(logical, carried)) {
    std::set<int> found;
    for (const int r : carriers) found.insert(hosts[static_cast<std::size_t>(r)]);
    is_on_one.push_back(found.size() <= 1);
  }
  return is_on_one;
}

std::vector<NodeRange> nodes_of(std::span<const HeldNode> held,
                                std::span<const ShardRange> logical) {
  return ranges_of(held, logical.size(), [&](const HeldNode& node, std::size_t l) {
    return node.block.begin >= logical[l].begin && node.block.begin < logical[l].end;
  });
}

std::vector<NodeRange> nodes_of_workers(std::span<const HeldNode> held, std::size_t workers) {
  return ranges_of(held, workers, [](const HeldNode& node, std::size_t l) {
    return node.worker == static_cast<int>(l);
  });
}

}  // namespace tutti
