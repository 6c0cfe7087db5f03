#include "sync/nodes/leaf_folder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/fold_program.h"
#include "sync/gradient_oracle.h"
#include "sync/own_board.h"

namespace tutti::test {
namespace {

struct Folder {
  explicit Folder(std::function<void(int)> before_slot = {},
                  const LeafFolder::Options& options = {})
      : plan({{"p", {100}, {1}, 100, DType::float32}}, {}),
        arena(plan.arena_bytes(kMaxSlots)),
        board(1),
        folder(plan, arena.data(), *board, options, std::move(before_slot)) {}
  void leaf(const Values& values, bool last) {
    folder.begin_leaf(1);
    folder.write(0, values.data(), last);
    folder.end_leaf();
  }
  Plan plan;
  std::vector<std::byte> arena;
  OwnBoard board;
  LeafFolder folder;
};

// What DESIGN promises: at most 2·⌊log2 V⌋ nodes and one leaf in flight.
// promise: data_parallel.h#micro_batches, numerics#why-a-worker-may-add-before-it-knows-n
TEST(LeafFolder, HoldsFewNodesWhereverItsRangeLies) {
  const auto values = random_values(1, 100);
  for (const std::int64_t total : {1, 2, 7, 16, 37}) {
    const int bound = 2 * (std::bit_width(static_cast<std::uint64_t>(total)) - 1) + 1;
    for (std::int64_t begin = 0; begin < total; ++begin) {
      Folder f;
      f.folder.set_start(begin);
      for (auto l = begin; l < total; ++l) f.leaf(values, l % 2 == 0);
      EXPECT_LE(f.folder.slots_used(), bound) << begin << " of " << total;
      std::vector<Block> blocks;
      for (const auto& node : f.folder.nodes()) blocks.push_back(node.block);
      EXPECT_EQ(blocks, blocks_of_range(begin, total));
    }
  }
}

TEST(LeafFolder, LearningItsPlaceLateFoldsTheSameNodes) {
  for (std::int64_t begin = 0; begin < 9; ++begin) {
    Folder early;
    Folder late;
    early.folder.set_start(begin);
    for (std::uint64_t l = 0; l < 11; ++l) {
      early.leaf(random_values(l, 100), true);
      late.leaf(random_values(l, 100), true);
    }
    EXPECT_EQ(late.folder.nodes().size(), 11u);
    late.folder.set_start(begin);
    ASSERT_EQ(late.folder.nodes().size(), early.folder.nodes().size());
    for (std::size_t k = 0; k < early.folder.nodes().size(); ++k) {
      const auto value = [&](Folder& f) {
        const auto slot = f.board->slot_table(static_cast<int>(k))[0];
        const auto* at = reinterpret_cast<const float*>(f.arena.data() + f.plan.slot_offset(slot));
        return Values(at, at + 100);
      };
      EXPECT_EQ(early.folder.nodes()[k].block, late.folder.nodes()[k].block);
      EXPECT_EQ(value(early), value(late));
    }
  }
}

// Whether a leaf's gradient is in a slot of its own, is added to it in parts, or is folded while
// hot.
TEST(LeafFolder, TheMagnitudeIsThatOfAllThatTheLastLeafWrote) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Folder f({}, {.reports_magnitude = true});
  f.folder.set_start(0);
  const auto magnitude_of = [&](double weight, const std::vector<float>& parts) {
    f.folder.begin_leaf(weight);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      Values values(100, 1.0F);
      values[37] = parts[part];
      f.folder.write(0, values.data(), part + 1 == parts.size());
    }
    f.folder.end_leaf();
    return f.folder.magnitude(0);
  };
  EXPECT_EQ(magnitude_of(2, {-5}), 10);
  EXPECT_EQ(magnitude_of(3, {2}), 6);  // the second of a pair: hot
  EXPECT_EQ(magnitude_of(1, {7, 2, 4}), 7);
  EXPECT_EQ(magnitude_of(1, {}), 0);
  EXPECT_FALSE(std::isfinite(magnitude_of(1, {kNaN, 2})));
  EXPECT_FALSE(std::isfinite(magnitude_of(1, {2, kNaN})));
  EXPECT_EQ(magnitude_of(0, {kNaN}), 0);
  EXPECT_EQ(magnitude_of(1, {3}), 3);
}

TEST(LeafFolder, AsksBeforeItUsesAnotherSlot) {
  std::vector<int> asked;
  Folder f([&](int slot) { asked.push_back(slot); });
  f.folder.set_start(1);
  for (std::uint64_t l = 0; l < 4; ++l) f.leaf(random_values(l, 100), false);
  EXPECT_EQ(asked, (std::vector<int>{1, 2}));
}

// What a leaf writes in two parts is where its nodes will be after the last part.
TEST(LeafFolder, ALastWriteThatAddsToAnEarlierOneIsMergedAtOnce) {
  const auto first = random_values(1, 100);
  const auto second = random_values(2, 100);
  for (const bool in_parts : {false, true}) {
    Folder f;
    const auto& board = *f.board;
    f.folder.set_start(0);
    f.leaf(first, true);
    f.folder.begin_leaf(1);
    if (in_parts) f.folder.write(0, first.data(), false);
    f.folder.write(0, second.data(), true);
    const auto nodes = f.folder.nodes_at_end();
    ASSERT_EQ(nodes.size(), 1u);
    EXPECT_EQ(nodes[0].block, (Block{0, 2}));
    const auto slot = board.slot_table(0)[0];
    ASSERT_LT(slot, kMaxSlots);
    EXPECT_EQ(board.slot_table(1)[0], kAbsent);
    const auto* const sum =
        reinterpret_cast<const float*>(f.arena.data() + f.plan.slot_offset(slot));
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(sum[i], first[i] + (in_parts ? first[i] + second[i] : second[i])) << i;
    }
    f.folder.end_leaf();
    EXPECT_EQ(board.slot_table(0)[0], slot);
  }
}

TEST(LeafFolder, AsksBeforeMoreRowsBecomeMemory) {
  const Plan plan({{.name = "t",
                    .shape = {10000, 64},
                    .strides = {64, 1},
                    .count = 640000,
                    .dtype = DType::float32,
                    .row_sparse = true}},
                  {});
  std::vector<std::byte> arena(plan.arena_bytes(4));
  const OwnBoard board(1);
  std::vector<std::size_t> asked;
  LeafFolder folder(plan, arena.data(), *board, {}, {},
                    [&](std::size_t, std::size_t bytes) { asked.push_back(bytes); });
  const std::vector<std::int64_t> rows = {5, 9000, 5, 7};
  const auto values = random_values(1, 4 * 64);
  for (int step = 0; step < 3; ++step) {
    folder.reset();
    folder.set_start(0);
    folder.begin_leaf(1);
    folder.write(0, RowEntries{rows.data(), values.data(), 4}, true);
    folder.end_leaf();
  }
  // Once, for twice as many rows as there were entries.
  EXPECT_EQ(asked, (std::vector<std::size_t>{64 + 64 + 8 * 256}));
  EXPECT_EQ(folder.bytes_held(), plan.held_bytes(folder.slots_used()) + asked[0]);
  EXPECT_EQ(folder.slots_used(), 1);
}

/// What lies in a slot of the one parameter.
Values in_slot(Folder& f, int slot) {
  const auto* const at = reinterpret_cast<const float*>(f.arena.data() + f.plan.slot_offset(slot));
  return Values(at, at + 100);
}

TEST(LeafFolder, AGradientThatIsBornInASlotStaysThere) {
  const auto values = random_values(1, 100);
  for (const double weight : {1.0, 3.0}) {
    Folder f;
    f.folder.set_start(0);
    f.folder.begin_leaf(weight);
    auto loan = f.folder.lend(0);
    ASSERT_TRUE(loan);
    EXPECT_FALSE(f.folder.lend(0));  // no other has been used yet
    std::memcpy(loan->at(), values.data(), 400);
    f.folder.write(0, loan->at(), true, true);
    loan.reset();
    f.folder.end_leaf();
    EXPECT_EQ(f.folder.zero_copy(), 1);
    EXPECT_EQ(f.folder.slots_used(), 1);
    EXPECT_FALSE(f.folder.lend(0));  // it is the node now
    auto expected = values;
    for (auto& value : expected) value *= static_cast<float>(weight);
    EXPECT_EQ(in_slot(f, 0), expected);
  }
}

TEST(LeafFolder, AGradientThatMayNotStayIsCopiedFromTheSlotItLiesIn) {
  const auto values = random_values(1, 100);
  Folder f;
  f.folder.set_start(0);
  const auto loan = f.folder.lend(0);
  std::memcpy(loan->at(), values.data(), 400);
  auto expected = values;
  for (auto& value : expected) value *= 6;
  for (int leaf = 0; leaf < 2; ++leaf) {
    f.folder.begin_leaf(3);
    f.folder.write(0, loan->at(), true);
    f.folder.end_leaf();
  }
  EXPECT_EQ(f.folder.zero_copy(), 0);
  EXPECT_EQ(in_slot(f, 0), values);
  EXPECT_EQ(in_slot(f, 1), expected);
}

TEST(LeafFolder, NoMoreThanTwoSlotsOfAParameterAreLent) {
  const auto values = random_values(1, 100);
  Folder f;
  std::vector<std::unique_ptr<SlotLoan>> loans;
  for (int step = 0; step < 70; ++step) {
    f.folder.reset();
    if (auto loan = f.folder.lend(0)) loans.push_back(std::move(loan));
    f.folder.set_start(0);
    f.leaf(values, true);
  }
  EXPECT_EQ(loans.size(), 2U);
  EXPECT_EQ(f.folder.slots_used(), 3);
}

TEST(LeafFolder, ASlotThatIsLentIsNobodyElses) {
  const auto values = random_values(1, 100);
  const auto others = random_values(2, 100);
  Folder f;
  const auto loan = f.folder.lend(0);
  std::memcpy(loan->at(), others.data(), 400);
  f.folder.set_start(0);
  f.leaf(values, true);
  f.folder.place_sums();
  EXPECT_EQ(f.folder.zero_copy(), 0);
  EXPECT_EQ(in_slot(f, 0), others);
  EXPECT_EQ(in_slot(f, 1), values);
  EXPECT_EQ(f.board->sum_slots()[0], 1);
  // A step later it is still lent, although all that was folded is free.
  f.folder.reset();
  const auto second = f.folder.lend(0);
  ASSERT_TRUE(second);
  EXPECT_NE(second->at(), loan->at());
}

}  // namespace
}  // namespace tutti::test
