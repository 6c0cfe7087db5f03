#include "comm/hosts/host_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

struct Tree {
  std::span<const Block> nodes;
  std::span<const int> hosts;
  std::vector<HostSubtree> subtrees;

  /// Nodes [first, last) are those below the tree's node over leaves [begin, begin + leaves).
  void add(std::size_t first, std::size_t last, std::int64_t begin, std::int64_t leaves) {
    if (first == last) return;
    const auto is_elsewhere = [&](int host) { return host != hosts[first]; };
    if (std::ranges::none_of(hosts.subspan(first, last - first), is_elsewhere)) {
      subtrees.push_back({hosts[first], first, last});
      return;
    }
    const auto left = left_leaves(leaves);
    const auto below = nodes.subspan(first, last - first);
    const auto right = std::ranges::lower_bound(below, begin + left, {}, &Block::begin);
    const auto middle = first + static_cast<std::size_t>(right - below.begin());
    add(first, middle, begin, left);
    add(middle, last, begin + left, leaves - left);
  }
};

HostSubtrees subtrees_of(std::vector<HostSubtree> all, std::int64_t members) {
  std::vector<FoldProgram> within;
  std::vector<Block> present;
  for (const auto& subtree : all) {
    within.push_back(FoldProgram::canonical(static_cast<int>(subtree.end - subtree.begin)));
    present.push_back({.begin = static_cast<std::int64_t>(subtree.begin), .size = 1});
  }
  auto program = FoldProgram::of_blocks(present, members);
  return {std::move(all), std::move(within), std::move(present), std::move(program)};
}

}  // namespace

std::vector<HostSubtree> host_subtrees(std::span<const Block> nodes, std::span<const int> hosts,
                                       std::int64_t leaves) {
  TUTTI_CHECK(nodes.size() == hosts.size(), "{} nodes, the hosts of {}", nodes.size(),
              hosts.size());
  Tree tree{nodes, hosts, {}};
  tree.add(0, nodes.size(), 0, leaves);
  return std::move(tree.subtrees);
}

int Team::deputy_of(int member) const {
  const auto found = std::ranges::find(members, member);
  return found != members.end() ? static_cast<int>(found - members.begin()) : member % size();
}

HostLayout HostLayout::of(std::vector<int> host_of, int rank) {
  const auto members = static_cast<int>(host_of.size());
  const int hosts = std::ranges::max(host_of) + 1;
  const int here = host_of[static_cast<std::size_t>(rank)];
  Team team;
  std::vector<int> first_of;
  std::vector<Block> values;
  std::vector<HostSubtree> leaves;
  for (int host = 0; host < hosts; ++host) {
    first_of.push_back(static_cast<int>(std::ranges::find(host_of, host) - host_of.begin()));
  }
  for (int member = 0; member < members; ++member) {
    const auto m = static_cast<std::size_t>(member);
    if (member == rank) team.rank = team.size();
    if (host_of[m] == here) team.members.push_back(member);
    values.push_back({.begin = member});
    leaves.push_back({host_of[m], m, m + 1});
  }
  auto whole = host_subtrees(values, host_of, members);
  return {.host_of = std::move(host_of),
          .hosts = hosts,
          .here = here,
          .team = std::move(team),
          .first_of = std::move(first_of),
          .subtrees = subtrees_of(std::move(whole), members),
          .leaves = subtrees_of(std::move(leaves), members)};
}

}  // namespace tutti
