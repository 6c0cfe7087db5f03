#include "kernels/fold_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "base/check.h"
#include "tutti/share.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The definition: leaves [begin, begin + leaves) as a formula, absent ones removed.
std::string formula(std::int64_t begin, std::int64_t leaves, const std::vector<bool>& present) {
  if (leaves == 1) {
    return present[static_cast<std::size_t>(begin)] ? std::to_string(begin) : "";
  }
  std::int64_t left = 1;
  while (2 * left < leaves) left *= 2;
  const std::string a = formula(begin, left, present);
  const std::string b = formula(begin + left, leaves - left, present);
  if (a.empty() || b.empty()) return a + b;
  return "(" + a + "+" + b + ")";
}

std::string run(const FoldProgram& program, const std::vector<std::string>& sources) {
  std::vector<std::string> stack;
  std::size_t next = 0;
  int depth = 0;
  for (const auto step : program.steps()) {
    if (step == FoldProgram::Step::push) {
      stack.push_back(sources.at(next++));
      depth = std::max(depth, static_cast<int>(stack.size()));
    } else {
      const std::string b = stack.back();
      stack.pop_back();
      stack.back() = "(" + stack.back() + "+" + b + ")";
    }
  }
  EXPECT_EQ(stack.size(), 1u);
  EXPECT_EQ(next, sources.size());
  EXPECT_EQ(program.sources(), static_cast<int>(sources.size()));
  EXPECT_EQ(program.depth(), depth);
  return stack.back();
}

/// Workers fold the ranges between `cuts` into blocks; the owner folds the blocks.
std::string folded_by_workers(const std::vector<std::int64_t>& cuts,
                              const std::vector<bool>& present) {
  std::vector<Block> blocks;
  std::vector<std::string> values;
  for (std::size_t w = 0; w + 1 < cuts.size(); ++w) {
    for (const Block block : blocks_of_range(cuts[w], cuts[w + 1])) {
      // A worker does not know n: it folds its block as a tree of its own.
      std::string value = formula(block.begin, block.size, present);
      if (value.empty()) continue;
      blocks.push_back(block);
      values.push_back(std::move(value));
    }
  }
  return run(FoldProgram::of_blocks(blocks, cuts.back()), values);
}

// promise: numerics#one-tree
TEST(FoldProgram, CanonicalIsTheDefinition) {
  for (int n = 1; n <= 130; ++n) {
    std::vector<std::string> leaves;
    for (int i = 0; i < n; ++i) leaves.push_back(std::to_string(i));
    EXPECT_EQ(run(FoldProgram::canonical(n), leaves),
              formula(0, n, std::vector<bool>(static_cast<std::size_t>(n), true)));
  }
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(FoldProgram, EveryShareOfWorkersGivesTheSameFormula) {
  for (int n = 1; n <= 130; ++n) {
    const std::vector<bool> all(static_cast<std::size_t>(n), true);
    const std::string expected = formula(0, n, all);
    for (int workers = 1; workers <= 12; ++workers) {
      std::vector<std::int64_t> cuts{0};
      for (int rank = 0; rank < workers; ++rank) {
        const auto [first, second] = share_of(n, rank, workers);
        EXPECT_EQ(first, cuts.back());
        cuts.push_back(second);
      }
      EXPECT_EQ(folded_by_workers(cuts, all), expected) << n << " over " << workers;
    }
    for (int cut = 0; cut <= n; ++cut) {
      EXPECT_EQ(folded_by_workers({0, cut, n}, all), expected) << n << " cut at " << cut;
    }
  }
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(FoldProgram, AbsentLeavesVanish) {
  std::mt19937 random(7);
  for (int n = 1; n <= 130; ++n) {
    for (int repeat = 0; repeat < 12; ++repeat) {
      std::vector<bool> present(static_cast<std::size_t>(n));
      const unsigned density = 1 + random() % 8;
      for (std::size_t i = 0; i < present.size(); ++i) present[i] = random() % 8 < density;
      present[random() % present.size()] = true;
      std::vector<std::int64_t> cuts{0, n};
      for (unsigned k = random() % 6; k > 0; --k) cuts.push_back(random() % (n + 1));
      std::ranges::sort(cuts);
      EXPECT_EQ(folded_by_workers(cuts, present), formula(0, n, present));
    }
  }
}

// Why blocks of different subtrees must not be added beforehand.
// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(FoldProgram, AddingAWorkersBlocksFirstIsAnotherFormula) {
  const std::vector<bool> all(5, true);
  const std::string early = "(0+((1+(2+3))+4))";
  EXPECT_NE(early, formula(0, 5, all));
  EXPECT_EQ(folded_by_workers({0, 1, 5}, all), formula(0, 5, all));
}

TEST(FoldProgram, ManyLeavesOfWhichFewArePresent) {
  const std::int64_t total = (std::int64_t{1} << 62) - 1;
  std::vector<Block> present;
  std::int64_t begin = 0;
  std::vector<std::string> names;
  for (int bit = 61; bit >= 0; --bit) {
    present.push_back({begin, std::int64_t{1} << bit});
    begin += std::int64_t{1} << bit;
    names.push_back("x");
  }
  const FoldProgram program = FoldProgram::of_blocks(present, total);
  run(program, names);
  EXPECT_EQ(program.depth(), 62);
}

TEST(FoldProgram, RefusesWhatIsNoBlock) {
  const auto of = [](std::vector<Block> blocks, std::int64_t total) {
    return [=] { FoldProgram::of_blocks(blocks, total); };
  };
  EXPECT_THAT(of({}, 4), ThrowsMessage<InternalError>(HasSubstr("no block is present")));
  EXPECT_THAT(of({{0, 3}}, 4), ThrowsMessage<InternalError>(HasSubstr("not an aligned block")));
  EXPECT_THAT(of({{2, 4}}, 8), ThrowsMessage<InternalError>(HasSubstr("not an aligned block")));
  EXPECT_THAT(of({{0, 0}}, 8), ThrowsMessage<InternalError>(HasSubstr("not an aligned block")));
  EXPECT_THAT(of({{-2, 2}}, 8), ThrowsMessage<InternalError>(HasSubstr("overlaps")));
  EXPECT_THAT(of({{4, 4}}, 7), ThrowsMessage<InternalError>(HasSubstr("exceeds 7 leaves")));
  EXPECT_THAT(of({{0, 2}, {1, 1}}, 4), ThrowsMessage<InternalError>(HasSubstr("overlaps")));
  EXPECT_THAT(of({{2, 1}, {0, 1}}, 4), ThrowsMessage<InternalError>(HasSubstr("overlaps")));
  EXPECT_THAT([] { FoldProgram::canonical(0); },
              ThrowsMessage<InternalError>(HasSubstr("a tree over 0 leaves")));
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(BlocksOfRange, AreAlignedAscendingFewAndAsLargeAsPossible) {
  EXPECT_THAT(blocks_of_range(3, 13),
              ElementsAre(Block{3, 1}, Block{4, 4}, Block{8, 4}, Block{12, 1}));
  for (std::int64_t end = 0; end <= 130; ++end) {
    for (std::int64_t begin = 0; begin <= end; ++begin) {
      const std::vector<Block> blocks = blocks_of_range(begin, end);
      std::int64_t at = begin;
      for (const Block block : blocks) {
        EXPECT_EQ(block.begin, at);
        EXPECT_EQ(block.begin % block.size, 0);
        const bool could_double =
            block.begin % (2 * block.size) == 0 && block.begin + 2 * block.size <= end;
        EXPECT_FALSE(could_double);
        at += block.size;
      }
      EXPECT_EQ(at, end);
      if (end > 0) {
        EXPECT_LE(static_cast<int>(blocks.size()), 2 * std::ilogb(static_cast<double>(end)) + 1);
      }
    }
  }
  EXPECT_THAT([] { blocks_of_range(3, 2); }, ThrowsMessage<InternalError>(HasSubstr("[3, 2)")));
}

}  // namespace
}  // namespace tutti
