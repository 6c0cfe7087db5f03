// What a host folds by itself, and the sum of that, against the tree over all nodes.

#include "comm/hosts/host_layout.h"

#include <array>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/fold_program.h"

namespace tutti::test {
namespace {

/// The program over these nodes, in words.
std::string text_of(std::span<const Block> blocks, std::int64_t total,
                    const std::vector<std::string>& names) {
  std::vector<std::string> stack;
  std::size_t next = 0;
  const auto program = FoldProgram::of_blocks(blocks, total);
  for (const auto step : program.steps()) {
    if (step == FoldProgram::Step::push) {
      stack.push_back(names[next++]);
      continue;
    }
    const auto right = stack.back();
    stack.pop_back();
    stack.back() = "(" + stack.back() + "+" + right + ")";
  }
  return stack.back();
}

// promise: links#what-travels-between-hosts
TEST(HostLayout, TheSumOfSumsIsTheTree) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t total = 1 + static_cast<std::int64_t>(random() % 23);
    const int hosts = 1 + static_cast<int>(random() % 4);
    std::vector<int> of_nodes;
    std::vector<std::string> names;
    std::vector<Block> all;
    for (std::int64_t l = 0; l < total; ++l) {
      const bool stays = !of_nodes.empty() && random() % 3 != 0;
      of_nodes.push_back(stays ? of_nodes.back()
                               : static_cast<int>(random() % static_cast<unsigned>(hosts)));
      names.push_back(std::to_string(l));
      all.push_back({l, 1});
    }
    std::vector<Block> parts;
    std::vector<std::string> sums;
    std::size_t seen = 0;
    for (const auto& block : host_subtrees(all, of_nodes, total)) {
      ASSERT_EQ(block.begin, seen);
      seen = block.end;
      const auto inside = std::span(all).subspan(block.begin, block.end - block.begin);
      sums.push_back(text_of(
          inside, total, {names.begin() + static_cast<std::ptrdiff_t>(block.begin), names.end()}));
      parts.push_back(inside.front());
      for (auto n = block.begin; n < block.end; ++n) {
        ASSERT_EQ(of_nodes[n], block.host);
      }
    }
    ASSERT_EQ(seen, all.size());
    ASSERT_EQ(text_of(parts, total, sums), text_of(all, total, names));
  }
}

TEST(HostLayout, SubtreesAreAsLargeAsAHostHasThem) {
  const auto layout = HostLayout::of({0, 0, 1, 1, 0, 0, 0, 2}, 4);
  EXPECT_EQ(layout.team.members, (std::vector<int>{0, 1, 4, 5, 6}));
  EXPECT_EQ(layout.team.rank, 2);
  EXPECT_EQ(layout.first_of, (std::vector<int>{0, 2, 7}));
  std::vector<std::array<std::size_t, 3>> subtrees;
  for (const auto& one : layout.subtrees.all)
    subtrees.push_back({static_cast<std::size_t>(one.host), one.begin, one.end});
  EXPECT_EQ(subtrees, (std::vector<std::array<std::size_t, 3>>{
                          {0, 0, 2}, {1, 2, 4}, {0, 4, 6}, {0, 6, 7}, {2, 7, 8}}));
  EXPECT_FALSE(HostLayout::of({0, 0, 0}, 1).spans_hosts());
}

}  // namespace
}  // namespace tutti::test
