// Where the nodes of all workers lie, and their folds, against recursive sums of what each wrote.

#include "sync/nodes/node_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "comm/gather_bytes.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/assignment.h"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kStoredCounts = {1, 63, 4097, 9000, 0};
constexpr std::int64_t kLeaves = 7;

double weight_of(std::int64_t leaf) { return static_cast<double>(1 + leaf % 3); }

NodeStore::Options options_of(Divisor divisor) {
  return {.arena_label = "nodes", .divisor = divisor};
}

/// All workers hand in their leaves of a step.
void hand_in(NodeStore& store, const Group& group, std::int64_t step) {
  const auto mine = assign_shards(kLeaves, group.size())[static_cast<std::size_t>(group.rank())];
  auto& leaves = store.leaves();
  store.open();
  leaves.set_start(mine.begin);
  for (auto l = mine.begin; l < mine.end; ++l) {
    leaves.begin_leaf(weight_of(l));
    const auto leaf = random_leaf(kStoredCounts, step, l, 4);
    for (std::size_t p = 0; p < leaf.size(); ++p) {
      if (leaf[p]) leaves.write(p, leaf[p]->data(), true);
    }
    leaves.end_leaf();
  }
  leaves.place_sums();
  store.boards().mine().header().leaves = leaves.leaves();
  store.publish();
  group.barrier();
  std::vector<HeldNode> nodes;
  std::int64_t count = 0;
  for (int r = 0; r < group.size(); ++r) {
    append_nodes(nodes, count, r, store.boards().of(r).header());
  }
  ASSERT_EQ(count, kLeaves);
  store.collect(std::move(nodes), count);
}

struct Expected {
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  double divisor(Divisor by, std::size_t p) const {
    double sum = 0;
    for (std::size_t l = 0; l < leaves.size(); ++l) {
      if (by == Divisor::weights || leaves[l][p]) sum += weights[l];
    }
    return by == Divisor::none ? 1 : sum;
  }
};

Expected expected_of(std::int64_t step) {
  Expected expected;
  for (std::int64_t l = 0; l < kLeaves; ++l) {
    expected.leaves.push_back(random_leaf(kStoredCounts, step, l, 4));
    expected.weights.push_back(weight_of(l));
  }
  return expected;
}

TEST(NodeStore, AnyWorkerFindsWhatAllHandedIn) {
  for (const auto divisor : {Divisor::weights, Divisor::contributors, Divisor::none}) {
    for (const int workers : {1, 2, 3, 5, 8}) {
      run_thread_ranks(workers, [&](const Job& job) {
        const Group group(job);
        StepMemory memory(group, "model");
        NodeStore store(memory, plan_of(kStoredCounts), options_of(divisor));
        SliceFold slices(store);
        for (std::int64_t step = 1; step <= 3; ++step) {
          hand_in(store, group, step);
          const auto expected = expected_of(step);
          EXPECT_EQ(store.held().weight(), 1 + 2 + 3 + 1 + 2 + 3 + 1);
          for (std::uint32_t p = 0; p < kStoredCounts.size(); ++p) {
            const auto by = expected.divisor(divisor, p);
            const auto sum = reduced(expected.leaves, expected.weights, p, by);
            ASSERT_EQ(store.touched(p), sum.has_value()) << p;
            if (!sum) continue;
            const auto sources = store.sources_of(p);
            EXPECT_EQ(sources.divisor, by) << p;
            if (divisor == Divisor::weights) {
              EXPECT_EQ(store.sources_of(p, {0, 1}).divisor, store.held().weight())
                  << "of all leaves";
            }
            Values got(kStoredCounts[p]);
            void* const to = got.data();
            slices.fold(sources, 0, static_cast<std::int64_t>(got.size()), DType::float32,
                        {&to, 1});
            EXPECT_EQ(got, *sum) << workers << " workers, step " << step << ", p" << p;
          }
          group.barrier();
        }
      });
    }
  }
}

TEST(NodeStore, SomeNodesAreAskedForAlone) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    NodeStore store(memory, plan_of(kStoredCounts), options_of(Divisor::contributors));
    SliceFold slices(store);
    hand_in(store, group, 1);
    const auto expected = expected_of(1);
    std::int64_t begin = 0;
    for (std::size_t n = 0; n < store.held().size(); ++n) {
      const NodeRange one{n, n + 1};
      const auto& node = store.held()[n];
      ASSERT_EQ(node.block.begin, begin);
      begin += node.block.size;
      double weight = 0;
      for (auto l = node.block.begin; l < begin; ++l) weight += weight_of(l);
      EXPECT_EQ(store.held().weight_of(one), weight);
      for (std::uint32_t p = 0; p < kStoredCounts.size(); ++p) {
        double contributed = 0;
        for (auto l = node.block.begin; l < begin; ++l) {
          if (expected.leaves[static_cast<std::size_t>(l)][p]) contributed += weight_of(l);
        }
        EXPECT_EQ(store.touched(p, one), contributed > 0);
        EXPECT_EQ(store.contributed(p, one), contributed);
        const auto sources = store.sources_of(p, one);
        EXPECT_EQ(sources.nodes.size(), contributed > 0 ? 1u : 0u);
        EXPECT_EQ(sources.divisor, contributed) << "of these nodes alone";
      }
    }
    EXPECT_EQ(begin, kLeaves);
    group.barrier();
  });
}

TEST(NodeStore, WhatAWorkerKeepsLiesWhereAllFindIt) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    NodeStore store(memory, plan_of(kStoredCounts), options_of(Divisor::weights));
    hand_in(store, group, 1);
    const auto value = static_cast<float>(group.rank() + 1);
    std::memcpy(store.sum_place(group.rank(), 3), &value, sizeof value);
    std::memcpy(store.result(group.rank(), 0), &value, sizeof value);
    group.barrier();
    for (int r = 0; r < 2; ++r) {
      const auto expected = static_cast<float>(r + 1);
      EXPECT_EQ(std::memcmp(store.sum_place(r, 3), &expected, sizeof expected), 0);
      EXPECT_EQ(std::memcmp(store.result(r, 0), &expected, sizeof expected), 0);
    }
    EXPECT_EQ(store.result(group.rank(), 0),
              store.arena().data() + store.plan().parameters()[0].result_offset);
    EXPECT_EQ(store.result(0), store.result(group.rank(), 0));
    EXPECT_GE(store.leaves().bytes_held(), store.plan().base_bytes());
    group.barrier();
  });
}

TEST(SliceFold, SharesOfAllWorkersAreTheWholeInEveryArena) {
  for (const int workers : {1, 2, 3, 5}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      StepMemory memory(group, "model");
      NodeStore store(memory, plan_of(kStoredCounts), options_of(Divisor::weights));
      SliceFold slices(store);
      hand_in(store, group, 2);
      const auto expected = expected_of(2);
      const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4};
      slices.fold(all);
      group.barrier();
      for (std::uint32_t p = 0; p < kStoredCounts.size(); ++p) {
        const auto sum = reduced(expected.leaves, expected.weights, p, 13);
        if (!sum || sum->empty()) continue;
        EXPECT_EQ(std::memcmp(store.result(group.rank(), p), sum->data(), sum->size() * 4), 0)
            << workers << " workers, p" << p;
      }
      group.barrier();
    });
  }
}

// Others may be reading an entry that has come.
TEST(NodeStore, AnEntryOfATableIsSentOnce) {
  for (const auto divisor : {Divisor::weights, Divisor::contributors}) {
    ThreadOptions options;
    options.hosts = even_hosts(2, 2);
    run_thread_ranks(
        2,
        [&](const Job& job) {
          const Group group(job);
          StepMemory memory(group, "model");
          NodeStore store(memory, plan_of({1, 2, 3, 4}), options_of(divisor));
          const auto& board = store.boards().of(0);
          auto* const table = board.slot_table(0);
          auto* const weights = board.weights(0);
          store.open();
          if (group.rank() == 0) {
            store.leaves().set_start(0);
            store.leaves().begin_leaf(2);
            const auto leaf = random_leaf({1, 2, 3, 4}, 1, 0, 0);
            for (std::size_t p = 0; p < 3; ++p) store.leaves().write(p, leaf[p]->data(), true);
            store.send_entries(std::vector<std::uint32_t>{2, 1});
          }
          group.barrier();
          if (group.rank() == 1) {
            EXPECT_NE(table[1], kAbsent);
            EXPECT_EQ(table[2], table[1]);
            EXPECT_EQ(weights[2], divisor == Divisor::weights ? 0 : 2);
            table[0] = table[1] = table[2] = table[3] = 77;
            weights[0] = weights[1] = weights[2] = 77;
          }
          group.barrier();
          if (group.rank() == 0) {
            store.leaves().end_leaf();
            store.publish();
            store.send();
          }
          group.barrier();
          if (group.rank() == 1) {
            EXPECT_EQ(table[1], 77);
            EXPECT_EQ(table[2], 77);
            EXPECT_LT(table[0], kMaxSlots);
            EXPECT_EQ(table[3], kAbsent);
            EXPECT_EQ(weights[0], divisor == Divisor::weights ? 77 : 2);
            EXPECT_EQ(weights[1], 77);
          }
          group.barrier();
        },
        options);
  }
}

// A worker's last leaf decides which nodes it has; they and complete entries are sent ahead.
TEST(NodeStore, NodesThatWereSentInTheLastLeafAreNotSentAgain) {
  ThreadOptions options;
  options.hosts = even_hosts(2, 2);
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        StepMemory memory(group, "model");
        NodeStore store(memory, plan_of({1, 2}), options_of(Divisor::weights));
        auto& header = store.boards().of(0).header();
        const auto* const tables = &store.boards().of(0);
        store.open();
        if (group.rank() == 0) {
          auto& leaves = store.leaves();
          leaves.set_start(1);  // 1, [2, 4): the last leaf is merged
          for (std::int64_t l = 1; l < 4; ++l) {
            const auto leaf = random_leaf({1, 2}, 1, l, 0);
            leaves.begin_leaf(static_cast<double>(l));
            leaves.write(1, leaf[1]->data(), true);
            if (l < 3) leaves.write(0, leaf[0]->data(), true);
            if (l < 3) leaves.end_leaf();
          }
          header.leaves = 3;
          store.publish();
          store.send_entries(std::vector<std::uint32_t>{1});
        }
        group.barrier();
        if (group.rank() == 1) {
          EXPECT_EQ(header.leaves, 3);
          ASSERT_EQ(header.node_count, 2);
          EXPECT_EQ(header.nodes[1].block, (Block{1, 2})) << "counted from the first leaf";
          EXPECT_EQ(header.nodes[1].weight, 2 + 3);
          EXPECT_LT(tables->slot_table(0)[1], kMaxSlots);
          EXPECT_LT(tables->slot_table(1)[1], kMaxSlots);
          header.leaves = header.node_count = 77;
          tables->slot_table(1)[1] = 77;
        }
        group.barrier();
        if (group.rank() == 0) {
          store.leaves().end_leaf();
          store.publish();
          header.arrived = 5;
          store.send();
        }
        group.barrier();
        if (group.rank() == 1) {
          EXPECT_EQ(header.leaves, 77);
          EXPECT_EQ(header.node_count, 77);
          EXPECT_EQ(tables->slot_table(1)[1], 77);
          EXPECT_EQ(header.arrived, 5);
          EXPECT_LT(tables->slot_table(1)[0], kMaxSlots);
        }
        group.barrier();
      },
      options);
}

// Their lists become one at the end of the leaf.
TEST(NodeStore, EntriesOfRowsThatAreWrittenInTheLastLeafAreSentAfterIt) {
  ThreadOptions options;
  options.hosts = even_hosts(2, 2);
  const Plan plan({{.name = "rows",
                    .shape = {8, 2},
                    .strides = {2, 1},
                    .count = 16,
                    .dtype = DType::float32,
                    .row_sparse = true}},
                  {});
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        StepMemory memory(group, "model");
        NodeStore store(memory, plan, options_of(Divisor::weights));
        store.open();
        const std::vector<float> values = {1, 2, 3, 4};
        std::uint8_t slot = kAbsent;
        if (group.rank() == 0) {
          store.leaves().set_start(0);
          for (const std::int64_t row : {1, 5}) {
            const std::vector<std::int64_t> rows = {row, 3};
            store.leaves().begin_leaf(1);
            store.leaves().write(0, RowEntries{rows.data(), values.data(), 2}, true);
            if (row == 1) store.leaves().end_leaf();
          }
          store.boards().mine().header().leaves = 2;
          store.publish();
          store.send_entries(std::vector<std::uint32_t>{0});
          store.leaves().end_leaf();
          store.publish();
          store.send();
        }
        group.barrier();
        const auto& board = store.boards().of(0);
        if (group.rank() == 0) slot = board.slot_table(0)[0];
        const auto agreed = gather_bytes(group, std::as_bytes(std::span(&slot, 1)), {});
        EXPECT_EQ(board.header().node_count, 1);
        EXPECT_EQ(std::byte{board.slot_table(0)[0]}, agreed[0][0]);
        group.barrier();
      },
      options);
}

TEST(SliceFold, ProgramsFollowTheShapeOfTheTree) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    NodeStore store(memory, plan_of({1}), options_of(Divisor::none));
    SliceFold slices(store);
    // ((a + b) + c) + d and (a + b) + (c + d) differ in float32.
    const Values parts = {1, 1e8f, -1e8f, 1};
    const auto sum_of = [&](const std::vector<Block>& blocks) {
      store.leaves().reset();
      for (const auto part : parts) {
        store.leaves().begin_leaf(1);
        store.leaves().write(0, &part, true);
        store.leaves().end_leaf();
      }
      std::vector<HeldNode> nodes;
      for (int k = 0; k < 4; ++k) nodes.push_back({0, k, blocks[static_cast<std::size_t>(k)], 1});
      store.collect(nodes, 8);
      float sum = 0;
      void* const to = &sum;
      slices.fold(store.sources_of(0), 0, 1, DType::float32, {&to, 1});
      return sum;
    };
    const HeldNodes& held = store.held();
    const auto shape = held.shape();
    EXPECT_EQ(sum_of({{0, 1}, {1, 1}, {2, 1}, {3, 1}}), (1 + 1e8f) + (-1e8f + 1));
    EXPECT_EQ(sum_of({{0, 1}, {1, 1}, {2, 2}, {4, 4}}), ((1 + 1e8f) + -1e8f) + 1);
    EXPECT_EQ(held.shape(), shape + 2);
    EXPECT_EQ(sum_of({{0, 1}, {1, 1}, {2, 2}, {4, 4}}), ((1 + 1e8f) + -1e8f) + 1);
    EXPECT_EQ(held.shape(), shape + 2);
  });
}

}  // namespace
}  // namespace tutti::test
