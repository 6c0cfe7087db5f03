#include "comm/local/host_layout.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tutti {
namespace {

using Subtree = HostSubtrees::Subtree;

/// The largest subtrees of [begin, end) that are on one host each.
void add_subtrees(std::span<const int> host_of, int begin, int end, std::vector<Subtree>& to) {
  const auto first = host_of.begin() + begin;
  if (std::all_of(first, host_of.begin() + end, [&](int host) { return host == *first; })) {
    to.push_back({*first, begin, end, FoldProgram::canonical(end - begin)});
    return;
  }
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(end - begin - 1)));
  add_subtrees(host_of, begin, begin + left, to);
  add_subtrees(host_of, begin + left, end, to);
}

HostSubtrees subtrees_of(std::vector<Subtree> all, int members) {
  std::vector<Block> present;
  for (const auto& subtree : all) present.push_back({.begin = subtree.begin, .size = 1});
  auto program = FoldProgram::of_blocks(present, members);
  return {std::move(all), std::move(present), std::move(program)};
}

}  // namespace

HostLayout HostLayout::of(std::vector<int> host_of, int rank) {
  const int members = static_cast<int>(host_of.size());
  const int hosts = std::ranges::max(host_of) + 1;
  const int here = host_of[static_cast<std::size_t>(rank)];
  std::vector<int> team;
  std::vector<int> first_of(static_cast<std::size_t>(hosts));
  std::vector<Subtree> whole;
  std::vector<Subtree> leaves;
  for (int member = members - 1; member >= 0; --member) {
    first_of[static_cast<std::size_t>(host_of[static_cast<std::size_t>(member)])] = member;
  }
  for (int member = 0; member < members; ++member) {
    const int host = host_of[static_cast<std::size_t>(member)];
    if (host == here) team.push_back(member);
    leaves.push_back({host, member, member + 1, FoldProgram::canonical(1)});
  }
  add_subtrees(host_of, 0, members, whole);
  const auto own = std::ranges::find(team, rank) - team.begin();
  return {.host_of = std::move(host_of),
          .hosts = hosts,
          .here = here,
          .team = std::move(team),
          .team_rank = static_cast<int>(own),
          .first_of = std::move(first_of),
          .subtrees = subtrees_of(std::move(whole), members),
          .leaves = subtrees_of(std::move(leaves), members)};
}

}  // namespace tutti
