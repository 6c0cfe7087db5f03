// Row-sparse gradients against a dense model in which every row is a gradient of its own: absent
// where nobody wrote it.

#include "sync/rows/row_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/norm.h"
#include "kernels/rules/registry.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/shard_board.h"
#include "sync/update/partitioned_update.h"
#include "sync/whole_step.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

struct SparseTable {
  std::int64_t rows;
  std::int64_t width;
};

TensorSpec spec_of(std::size_t p, const SparseTable& table, DType dtype = DType::float32) {
  return {.name = "t" + std::to_string(p),
          .shape = {table.rows, table.width},
          .strides = {table.width, 1},
          .count = table.rows * table.width,
          .dtype = dtype,
          .row_sparse = true};
}

Plan plan_of_tables(const std::vector<SparseTable>& tables) {
  std::vector<TensorSpec> specs;
  for (std::size_t p = 0; p < tables.size(); ++p) specs.push_back(spec_of(p, tables[p]));
  return {std::move(specs), {}};
}

/// What a backward hands over.
struct Occurrences {
  std::vector<std::int64_t> rows;
  Values values;
  RowEntries entries() const {
    return {rows.data(), values.data(), static_cast<std::int64_t>(rows.size())};
  }
};

/// Of that leaf in that step: from no row to many, some more than once, the first rows more often.
Occurrences draw(const SparseTable& table, std::size_t p, std::int64_t step, std::int64_t leaf) {
  std::mt19937_64 random(
      static_cast<std::uint64_t>(step * 7919 + leaf * 104729 + static_cast<std::int64_t>(p) * 31));
  const auto most = static_cast<std::uint64_t>(std::min<std::int64_t>(table.rows, 40));
  const auto count = random() % 4 == 0 ? 0 : random() % (2 * most);
  Occurrences drawn;
  for (std::uint64_t k = 0; k < count; ++k) {
    const auto below = random() % 2 == 0 ? table.rows : std::max<std::int64_t>(1, table.rows / 9);
    drawn.rows.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below)));
  }
  drawn.values = random_values(random(), drawn.rows.size() * static_cast<std::size_t>(table.width));
  return drawn;
}

/// Row by row, in the order of occurrence.
Leaf as_rows(const SparseTable& table, const Occurrences& drawn) {
  Leaf leaf(static_cast<std::size_t>(table.rows));
  const auto width = static_cast<std::size_t>(table.width);
  for (std::size_t k = 0; k < drawn.rows.size(); ++k) {
    auto& row = leaf[static_cast<std::size_t>(drawn.rows[k])];
    if (!row) {
      row = Values(drawn.values.begin() + static_cast<std::ptrdiff_t>(k * width),
                   drawn.values.begin() + static_cast<std::ptrdiff_t>((k + 1) * width));
      continue;
    }
    for (std::size_t i = 0; i < width; ++i) (*row)[i] += drawn.values[k * width + i];
  }
  return leaf;
}

double weight_of(std::int64_t shard) { return static_cast<double>(1 + (shard * 5 + 3) % 4); }

struct Room {
  explicit Room(const SparseTable& table)
      : plan(plan_of_tables({table})), memory(plan.arena_bytes(1) + 64) {}
  RowRoom room() {
    void* at = memory.data();
    std::size_t space = memory.size();
    std::align(64, 64, at, space);
    return {static_cast<std::byte*>(at), plan.parameters()[0]};
  }
  Plan plan;
  std::vector<std::byte> memory;
};

void expect_rows(const RowList& list, const Leaf& expected, std::int64_t width) {
  std::size_t k = 0;
  for (std::size_t row = 0; row < expected.size(); ++row) {
    if (!expected[row]) continue;
    ASSERT_LT(k, list.rows.size());
    EXPECT_EQ(list.rows[k], row);
    const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
    EXPECT_EQ(std::memcmp(list.values + k * bytes, expected[row]->data(), bytes), 0) << row;
    ++k;
  }
  EXPECT_EQ(k, list.rows.size());
}

TEST(RowList, EntriesOfARowAreAddedInOrderThenWeighted) {
  for (const SparseTable table :
       {SparseTable{1, 1}, SparseTable{7, 3}, SparseTable{100, 17}, SparseTable{5, 5000}}) {
    for (std::int64_t seed = 0; seed < 8; ++seed) {
      const auto drawn = draw(table, 0, seed, 1);
      auto expected = as_rows(table, drawn);
      double most = 0;
      for (auto& row : expected) {
        if (!row) continue;
        for (auto& value : *row) {
          value *= 3;
          most = std::max<double>(most, std::abs(value));
        }
      }
      Room place(table);
      double largest = -1;
      place.room().gather(drawn.entries(), 3, &largest);
      expect_rows(place.room().list(), expected, table.width);
      EXPECT_EQ(largest, most);
    }
  }
}

TEST(RowList, WithoutRowsItIsAllOfThem) {
  const SparseTable table{6, 3};
  Room place(table);
  const auto values = random_values(1, 18);
  place.room().gather({nullptr, values.data(), 6}, 1, nullptr);
  const auto list = place.room().list();
  EXPECT_EQ(std::vector(list.rows.begin(), list.rows.end()),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(std::memcmp(list.values, values.data(), values.size() * sizeof(float)), 0);
}

TEST(RowList, WhatIsNotFiniteShows) {
  Room place(SparseTable{4, 2});
  const std::vector<std::int64_t> rows = {3, 0, 3};
  const float big = std::numeric_limits<float>::max();
  const Values values = {big, 1, 2, 2, big, 1};
  double largest = 0;
  place.room().gather({rows.data(), values.data(), 3}, 1, &largest);
  EXPECT_FALSE(std::isfinite(largest));
}

TEST(RowList, ASumHasTheRowsOfBoth) {
  for (const SparseTable table : {SparseTable{1, 1}, SparseTable{40, 5}, SparseTable{1000, 2}}) {
    for (std::int64_t seed = 0; seed < 12; ++seed) {
      const auto a = draw(table, 0, seed, 1);
      const auto b = draw(table, 0, seed, 2);
      Room left(table);
      Room right(table);
      Room sum(table);
      left.room().gather(a.entries(), 1, nullptr);
      right.room().gather(b.entries(), 1, nullptr);
      sum.room().add(left.room().list(), right.room().list());
      const auto rows_a = as_rows(table, a);
      const auto rows_b = as_rows(table, b);
      Leaf expected;
      for (std::size_t row = 0; row < rows_a.size(); ++row) {
        expected.push_back(fold_range({rows_a[row], rows_b[row]}, 0, 2));
      }
      expect_rows(sum.room().list(), expected, table.width);
    }
  }
}

// ---- steps ----

const std::vector<SparseTable> kTables = {{300, 5}, {1, 3}, {70, 64}, {500, 1}, {3, 5000}};
constexpr std::int64_t kTableShards = 11;

/// Each row of each table as the tree gives it.
std::vector<Leaf> expected_step(std::int64_t step) {
  std::vector<double> weights;
  double total = 0;
  for (std::int64_t s = 0; s < kTableShards; ++s) {
    weights.push_back(weight_of(s));
    total += weights.back();
  }
  std::vector<Leaf> tables;
  for (std::size_t p = 0; p < kTables.size(); ++p) {
    std::vector<Leaf> leaves;
    for (std::int64_t s = 0; s < kTableShards; ++s) {
      leaves.push_back(as_rows(kTables[p], draw(kTables[p], p, step, s)));
    }
    Leaf rows;
    for (std::size_t r = 0; r < static_cast<std::size_t>(kTables[p].rows); ++r) {
      rows.push_back(reduced(leaves, weights, r, total));
    }
    tables.push_back(std::move(rows));
  }
  return tables;
}

void write_leaves(StepExchange& exchange, ShardBoard* board, const ShardRange& mine,
                  std::int64_t step) {
  exchange.open_shards(mine.begin, mine.count());
  for (auto s = mine.begin; s < mine.end; ++s) {
    exchange.leaves().begin_leaf(weight_of(s));
    for (std::size_t p = 0; p < kTables.size(); ++p) {
      const auto drawn = draw(kTables[p], p, step, s);
      exchange.leaves().write(p, drawn.entries(), true);
    }
    exchange.leaves().end_leaf();
    if (board == nullptr) continue;
    double largest = 0;
    for (std::size_t p = 0; p < kTables.size(); ++p) {
      largest = std::max(largest, exchange.leaves().magnitude(p));
    }
    board->mine().all.bound += largest;
  }
}

std::vector<std::vector<Leaf>> expected_steps(std::int64_t steps) {
  std::vector<std::vector<Leaf>> all;
  for (std::int64_t step = 1; step <= steps; ++step) all.push_back(expected_step(step));
  return all;
}

/// Each worker's share of the rows, to its arena.
void keep(const StepExchange& exchange, RowGradients& rows) {
  rows.begin(1);
  rows.keep(OwnedRanges(exchange, rows).of(exchange.group().rank()), {});
}

TEST(RowGradients, AnyNumberOfWorkersFoldsTheTreesRows) {
  constexpr std::int64_t kSteps = 4;
  const auto all_steps = expected_steps(kSteps);
  for (const int workers : kNumbersOfWorkers) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_of_tables(kTables),
                            {.name = "model", .sync_buffers = false, .reports_magnitude = true});
      RowGradients rows(exchange);
      const auto mine =
          assign_shards(kTableShards, workers)[static_cast<std::size_t>(group.rank())];
      for (std::int64_t step = 1; step <= kSteps; ++step) {
        const auto& expected = all_steps[static_cast<std::size_t>(step - 1)];
        write_leaves(exchange, nullptr, mine, step);
        exchange.arrive({});
        keep(exchange, rows);
        exchange.protocol().barrier("the sum of its rows in");
        for (std::uint32_t p = 0; p < kTables.size(); ++p) {
          const bool any = std::ranges::any_of(expected[p], [](const auto& row) { return !!row; });
          ASSERT_EQ(rows.touched(p), any);
          if (!any) continue;
          // All shares, as kept by their owners, and the same at once.
          Room all({kTables[p]});
          Room at_once({kTables[p]});
          for (int r = 0; r < workers; ++r) all.room().append(rows.kept(r, p));
          rows.merge(p, {0, kTables[p].rows},
                     [&](const RowList& list) { at_once.room().append(list); });
          expect_rows(all.room().list(), expected[p], kTables[p].width);
          expect_rows(at_once.room().list(), expected[p], kTables[p].width);
        }
        exchange.complete([&] { rows.note(); });
        StepReport report;
        rows.commit(report);
      }
    });
  }
}

// Sixteen ranges that no subtree ends with are more nodes than one fold takes.
TEST(RowGradients, ManyNodesAreFoldedToo) {
  constexpr int kWorkers = 16;
  constexpr std::int64_t kEach = 21;
  const SparseTable table{4, 3};
  std::vector<Leaf> leaves;
  for (std::int64_t s = 0; s < kWorkers * kEach; ++s) {
    leaves.push_back(as_rows(table, draw(table, 0, 1, s)));
  }
  Leaf expected;
  const std::vector<double> weights(leaves.size(), 1.0);
  for (std::size_t r = 0; r < 4; ++r) {
    expected.push_back(reduced(leaves, weights, r, static_cast<double>(leaves.size())));
  }
  run_thread_ranks(kWorkers, [&](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({table}), {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(kEach * group.rank(), kEach);
    for (auto s = kEach * group.rank(); s < kEach * (group.rank() + 1); ++s) {
      exchange.leaves().begin_leaf(1);
      const auto drawn = draw(table, 0, 1, s);
      exchange.leaves().write(0, drawn.entries(), true);
      exchange.leaves().end_leaf();
    }
    exchange.arrive({});
    EXPECT_GT(exchange.nodes().held().size(), 64u);
    Room all(table);
    rows.begin(1);
    rows.merge(0, {0, 4}, [&](const RowList& list) { all.room().append(list); });
    expect_rows(all.room().list(), expected, table.width);
    exchange.complete([] {});
  });
}

TEST(RowGradients, SharesAreBalancedByEntries) {
  run_thread_ranks(4, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{100000, 2}}), {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(group.rank(), 1);
    exchange.leaves().begin_leaf(1);
    // All of them in one hundredth of the table.
    std::vector<std::int64_t> own(1000);
    std::iota(own.begin(), own.end(), 40000);
    const auto values = random_values(1, 2000);
    exchange.leaves().write(0, RowEntries{own.data(), values.data(), 1000}, true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    keep(exchange, rows);
    EXPECT_NEAR(static_cast<double>(rows.kept(group.rank(), 0).rows.size()), 250, 2 * kRowBlock);
    exchange.complete([&] { rows.note(); });
  });
}

// A list names its rows in 4 bytes each, unless an earlier parameter has the same ones; where all
// rows and a bit each are less, they are sent.
// promise: step_report.h#max_sent_bytes
TEST(RowGradients, BytesAreThoseOfTheFormula) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{1000, 8}, {1000, 1}, {1000, 1}}),
                          {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(group.rank(), 1);
    exchange.leaves().begin_leaf(1);
    std::vector<std::int64_t> own(100);
    std::iota(own.begin(), own.end(), 50 * group.rank());
    const auto values = random_values(1, 8000);
    exchange.leaves().write(0, RowEntries{own.data(), values.data(), 100}, true);
    exchange.leaves().write(1, RowEntries{own.data(), values.data(), 100}, true);
    exchange.leaves().write(2, RowEntries{nullptr, values.data(), 1000}, true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    keep(exchange, rows);
    exchange.complete([&] { rows.note(); });
    StepReport report;
    rows.commit(report);
    const auto step = rows.traffic().last_step;
    // Two messages of 100 rows, two answers of 150.
    EXPECT_EQ(step[0].bytes, 2u * 100 * (32 + 4) + 2u * 150 * (32 + 4));
    EXPECT_EQ(step[1].bytes, 2u * 100 * 4 + 2u * 150 * 4);
    EXPECT_EQ(step[2].bytes, 4u * (1000 * 4 + 125));
    EXPECT_EQ(step[0].bytes_dense, 4u * 32000);
    EXPECT_EQ(step[2].dense_messages, 2);
    EXPECT_EQ(step[0].dense_messages, 0);
    EXPECT_EQ(report.max_sent_bytes, 100u * 36 + 100 * 4 + 4125);
  });
}

// As of dense gradients: what a worker's nodes have together is one message.
TEST(RowGradients, SeveralNodesOfAWorkerAreOneMessage) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{100, 4}}), {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(0, 3);
    const auto values = random_values(1, 40);
    for (std::int64_t s = 0; s < 3; ++s) {
      exchange.leaves().begin_leaf(1);
      std::vector<std::int64_t> own(10);
      std::iota(own.begin(), own.end(), 5 * s);
      exchange.leaves().write(0, RowEntries{own.data(), values.data(), 10}, true);
      exchange.leaves().end_leaf();
    }
    exchange.arrive({});
    EXPECT_EQ(exchange.nodes().held().size(), 2u);
    keep(exchange, rows);
    exchange.complete([&] { rows.note(); });
    StepReport report;
    rows.commit(report);
    const auto step = rows.traffic().last_step[0];
    EXPECT_EQ(step.messages, 1);
    EXPECT_EQ(step.bytes, 2u * 20 * (16 + 4));
    EXPECT_EQ(step.bytes_dense, 2u * 1600);
  });
}

// The most frequent words are the first rows: half of all entries may lie in one block.
TEST(RowGradients, ABlockOfManyEntriesDoesNotLeaveAWorkerWithAllOfThem) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{1000, 2}}), {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(group.rank(), 1);
    exchange.leaves().begin_leaf(1);
    std::vector<std::int64_t> own(64);
    std::iota(own.begin(), own.end(), 0);
    for (std::int64_t k = 0; k < 56; ++k) own.push_back(100 + 10 * k);
    const auto values = random_values(1, 240);
    exchange.leaves().write(0, RowEntries{own.data(), values.data(), 120}, true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    keep(exchange, rows);
    EXPECT_EQ(rows.kept(group.rank(), 0).rows.size(), group.rank() == 0 ? 64u : 56u);
    exchange.complete([&] { rows.note(); });
  });
}

// More entries than are due to the first worker lie before the border of a block, all of them in
// its last row: the second worker's range began behind the third one's, and rows were summed twice.
TEST(RowGradients, ARowThatAllHaveAtTheEndOfABlockIsDealtOnce) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{90, 2}}), {.name = "model"});
    RowGradients rows(exchange);
    exchange.open_shards(group.rank(), 1);
    exchange.leaves().begin_leaf(1);
    const std::vector<std::int64_t> own = {63, 70 + 2 * group.rank()};
    const auto values = random_values(static_cast<std::uint64_t>(group.rank()), 4);
    exchange.leaves().write(0, RowEntries{own.data(), values.data(), 2}, true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    keep(exchange, rows);
    exchange.protocol().barrier("the sum of its rows in");
    std::vector<std::uint32_t> dealt;
    for (int r = 0; r < 3; ++r) {
      const auto list = rows.kept(r, 0);
      dealt.insert(dealt.end(), list.rows.begin(), list.rows.end());
    }
    EXPECT_EQ(dealt, (std::vector<std::uint32_t>{63, 70, 72, 74}));
    exchange.complete([&] { rows.note(); });
  });
}

// What anybody reads, or an owner folded in the step before, is not sent.
TEST(RowGradients, OnlyWhatOwnersFoldInTheStepCounts) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{1000, 2}}), {.name = "model"});
    RowGradients rows(exchange);
    const auto values = random_values(1, 600);
    auto scaled = values;  // by a power of two, which leaves no trace
    for (auto& value : scaled) value *= 8;
    for (const std::int64_t count : {300, 1}) {  // the one row of the second step has one owner
      std::vector<std::int64_t> own(static_cast<std::size_t>(count));
      std::iota(own.begin(), own.end(), 0);
      exchange.open_shards(group.rank(), 1);
      exchange.leaves().begin_leaf(1);
      exchange.leaves().write(0, RowEntries{own.data(), scaled.data(), count}, true);
      exchange.leaves().end_leaf();
      exchange.arrive({});
      rows.begin(8);
      exchange.complete([&] {
        for (const auto& range : OwnedRanges(exchange, rows).of(group.rank())) {
          rows.fold(range, [](const ElementRange&, const std::byte*) {});
        }
        EXPECT_EQ(read_all(rows, 0, 2000),
                  Values(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(2 * count)));
        rows.note();
      });
      StepReport report;
      rows.commit(report);
      EXPECT_EQ(rows.traffic().last_step[0].bytes, static_cast<std::uint64_t>(4 * count * (8 + 4)));
      group.barrier();
    }
  });
}

TEST(RowGradients, AreReadFromOwnersOnlyInAStepInWhichTheseHaveKeptThem) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{500, 1}}), {.name = "model"});
    RowGradients rows(exchange);
    const Values values = {1, 2, 3};
    for (const std::int64_t first : {3, 70}) {
      const std::vector<std::int64_t> own = {first, first + 100, first + 200};
      exchange.open_shards(group.rank(), 1);
      exchange.leaves().begin_leaf(1);
      exchange.leaves().write(0, RowEntries{own.data(), values.data(), 3}, true);
      exchange.leaves().end_leaf();
      exchange.arrive({});
      rows.begin(1);
      if (first == 3) rows.keep(OwnedRanges(exchange, rows).of(group.rank()), {});
      exchange.protocol().barrier("the sum of its rows in");
      std::vector<std::int64_t> read;
      rows.read_rows(0, [&](const RowList& list) {
        read.insert(read.end(), list.rows.begin(), list.rows.end());
      });
      EXPECT_EQ(read, own);
      EXPECT_EQ(rows.squares_of(0), 1 + 4 + 9);
      exchange.complete([] {});
    }
  });
}

// What was refused for want of memory leaves nothing behind: the next step is whole.
TEST(RowGradients, AStepThatWasDroppedLeavesNothing) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of_tables({{50, 2}}), {.name = "model"});
    RowGradients rows(exchange);
    const auto values = random_values(1, 20);
    const std::vector<std::int64_t> own = {1, 4, 9, 16, 25, 36, 49, 2, 3, 5};
    for (int attempt = 0; attempt < 2; ++attempt) {
      exchange.open_shards(group.rank(), 1);
      exchange.leaves().begin_leaf(1);
      const auto count = attempt == 0 ? 10 : 1 + group.rank();
      exchange.leaves().write(0, RowEntries{own.data(), values.data(), count}, true);
      exchange.leaves().end_leaf();
      if (attempt == 0 && group.rank() == 1) {
        exchange.protocol().fail("no memory for rows");
        continue;
      }
      if (attempt == 0) {
        EXPECT_THROW(exchange.arrive({}), PeerFailed);
        continue;
      }
      exchange.arrive({});
      keep(exchange, rows);
      exchange.protocol().barrier("the sum of its rows in");
      std::vector<std::uint32_t> all;
      for (int r = 0; r < 3; ++r) {
        const auto list = rows.kept(r, 0);
        all.insert(all.end(), list.rows.begin(), list.rows.end());
      }
      EXPECT_EQ(all, (std::vector<std::uint32_t>{1, 4, 9}));
      exchange.complete([&] { rows.note(); });
      StepReport report;
      rows.commit(report);
    }
    EXPECT_EQ(rows.traffic().steps, 1);
  });
}

// ---- updates ----

struct Case {
  UpdateRule rule;
  Clip clip;
};

std::vector<Values> first_values() {
  std::vector<Values> values;
  for (std::size_t p = 0; p < kTables.size(); ++p) {
    values.push_back(
        random_values(p + 77, static_cast<std::size_t>(kTables[p].rows * kTables[p].width)));
  }
  return values;
}

/// Row by row.
std::vector<Values> alone(const Case& test, std::int64_t steps) {
  auto values = first_values();
  auto first = values;
  auto second = values;
  for (auto* state : {&first, &second}) {
    for (auto& table : *state) std::fill(table.begin(), table.end(), 0.0f);
  }
  std::vector<std::int64_t> updates(kTables.size());
  for (std::int64_t step = 1; step <= steps; ++step) {
    const auto gradients = expected_step(step);
    double total = 0;
    for (std::size_t p = 0; p < kTables.size(); ++p) {
      std::vector<double> blocks(static_cast<std::size_t>((kTables[p].rows + 63) / 64));
      for (std::size_t r = 0; r < gradients[p].size(); ++r) {
        if (!gradients[p][r]) continue;
        std::vector<double> parts((gradients[p][r]->size() + 4095) / 4096);
        squares_of_blocks(gradients[p][r]->data(), DType::float32, kTables[p].width, parts);
        blocks[r / 64] += tree_sum(parts);
      }
      total += tree_sum(blocks);
    }
    const double scale =
        test.clip.norm > 0 ? std::min(1.0, test.clip.norm / (std::sqrt(total) + 1e-6)) : 1;
    for (std::size_t p = 0; p < kTables.size(); ++p) {
      if (std::ranges::none_of(gradients[p], [](const auto& row) { return !!row; })) continue;
      const auto by = test.rule.at({.step = ++updates[p], .row_sparse = true});
      for (std::size_t r = 0; r < gradients[p].size(); ++r) {
        if (!gradients[p][r]) continue;
        const auto at = r * static_cast<std::size_t>(kTables[p].width);
        update(by, {.dtype = DType::float32,
                    .gradient = gradients[p][r]->data(),
                    .parameter = values[p].data() + at,
                    .states = {first[p].data() + at, second[p].data() + at},
                    .count = kTables[p].width,
                    .gradient_scale = scale,
                    .clip_value = test.clip.value});
      }
    }
  }
  return values;
}

// promise: optimizer.h#Optimizer, trainer_options.h#row_sparse
TEST(RowGradients, UpdatesTouchTheRowsThatWereTouched) {
  const std::vector<Case> cases = {
      {define(Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}), {}},
      {define(AdamW{.lr = 0.01, .weight_decay = 0.1}), {}},
      {define(Adagrad{.lr = 0.1, .weight_decay = 0.01}), {.norm = 0.5, .value = 1e-3}}};
  constexpr std::int64_t kSteps = 4;
  for (const auto& test : cases) {
    const auto expected = alone(test, kSteps);
    for (const int workers : kNumbersOfWorkers) {
      run_thread_ranks(workers, [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of_tables(kTables),
                              {.name = "model", .sync_buffers = false, .reports_magnitude = true});
        ShardBoard board(exchange.memory());
        SharedModel model(
            group, exchange.plan(),
            std::vector<int>(kTables.size(), static_cast<int>(test.rule.states.size())), false,
            "model");
        const auto values = first_values();
        for (std::size_t p = 0; p < kTables.size() && group.rank() == 0; ++p) {
          std::memcpy(model.value(p), values[p].data(), values[p].size() * sizeof(float));
        }
        group.barrier();
        RowGradients rows(exchange);
        PartitionedUpdate update(exchange, board, model, {&rows},
                                 std::vector<std::optional<UpdateRule>>(kTables.size(), test.rule),
                                 nullptr, test.clip);
        const auto mine =
            assign_shards(kTableShards, workers)[static_cast<std::size_t>(group.rank())];
        for (std::int64_t step = 1; step <= kSteps; ++step) {
          board.mine() = {};
          write_leaves(exchange, &board, mine, step);
          exchange.arrive({});
          const auto verdict = update.judge(1);
          ASSERT_EQ(verdict.refusal, "");
          EXPECT_EQ(verdict.folded, test.clip.norm > 0);
          const auto& outcome = exchange.complete([&] { update.apply(verdict, 1); });
          auto report = outcome.report;
          update.commit(outcome.touched, report);
        }
        for (std::size_t p = 0; p < kTables.size(); ++p) {
          ASSERT_EQ(
              std::memcmp(model.value(p), expected[p].data(), expected[p].size() * sizeof(float)),
              0)
              << workers << " workers, table " << p;
        }
        group.barrier();
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test
