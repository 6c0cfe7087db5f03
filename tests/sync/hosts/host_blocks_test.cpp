// What a host adds up by itself, and the sum of that, against the tree over all nodes.

#include "sync/hosts/host_blocks.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

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
TEST(HostBlocks, TheSumOfSumsIsTheTree) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t total = 1 + static_cast<std::int64_t>(random() % 23);
    const int hosts = 1 + static_cast<int>(random() % 4);
    std::vector<HeldNode> nodes;
    std::vector<int> of_nodes;
    std::vector<std::string> names;
    std::vector<Block> all;
    for (std::int64_t l = 0; l < total; ++l) {
      nodes.push_back({0, 0, {l, 1}, 1});
      const bool stays = !of_nodes.empty() && random() % 3 != 0;
      of_nodes.push_back(stays ? of_nodes.back()
                               : static_cast<int>(random() % static_cast<unsigned>(hosts)));
      names.push_back(std::to_string(l));
      all.push_back({l, 1});
    }
    std::vector<Block> parts;
    std::vector<std::string> sums;
    std::size_t seen = 0;
    for (const auto& block : host_blocks(nodes, of_nodes, total)) {
      ASSERT_EQ(block.nodes.begin, seen);
      seen = block.nodes.end;
      const auto inside =
          std::span(all).subspan(block.nodes.begin, block.nodes.end - block.nodes.begin);
      sums.push_back(
          text_of(inside, total,
                  {names.begin() + static_cast<std::ptrdiff_t>(block.nodes.begin), names.end()}));
      parts.push_back(inside.front());
      for (auto n = block.nodes.begin; n < block.nodes.end; ++n) {
        ASSERT_EQ(of_nodes[n], block.host);
      }
    }
    ASSERT_EQ(seen, nodes.size());
    ASSERT_EQ(text_of(parts, total, sums), text_of(all, total, names));
  }
}

}  // namespace
}  // namespace tutti::test
