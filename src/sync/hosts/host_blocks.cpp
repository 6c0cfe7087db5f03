#include "sync/hosts/host_blocks.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tutti {
namespace {

struct Tree {
  std::span<const HeldNode> nodes;
  std::span<const int> hosts;
  std::vector<HostBlock> blocks;

  bool on_one_host(NodeRange range) const {
    return std::all_of(hosts.begin() + static_cast<std::ptrdiff_t>(range.begin),
                       hosts.begin() + static_cast<std::ptrdiff_t>(range.end),
                       [&](int host) { return host == hosts[range.begin]; });
  }

  /// The nodes of `range` are those below the tree's node over leaves [begin, begin + leaves).
  void add(NodeRange range, std::int64_t begin, std::int64_t leaves) {
    if (range.begin == range.end) return;
    if (on_one_host(range)) {
      blocks.push_back({hosts[range.begin], range});
      return;
    }
    const auto left =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves - 1)));
    const auto is_left = [&](const HeldNode& node) { return node.block.begin < begin + left; };
    const auto at = nodes.begin() + static_cast<std::ptrdiff_t>(range.begin);
    const auto middle =
        std::partition_point(at, nodes.begin() + static_cast<std::ptrdiff_t>(range.end), is_left);
    const auto cut = static_cast<std::size_t>(middle - nodes.begin());
    add({range.begin, cut}, begin, left);
    add({cut, range.end}, begin + left, leaves - left);
  }
};

}  // namespace

std::vector<HostBlock> host_blocks(std::span<const HeldNode> nodes, std::span<const int> hosts,
                                   std::int64_t leaves) {
  TUTTI_CHECK(nodes.size() == hosts.size(), "{} nodes, the hosts of {}", nodes.size(),
              hosts.size());
  Tree tree{nodes, hosts, {}};
  tree.add({0, nodes.size()}, 0, leaves);
  return std::move(tree.blocks);
}

}  // namespace tutti
