// Lists of rows against a map from row to values.

#include "sync/plan/row_list.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "sync/plan/plan.h"
#include "sync/plan/plan_entry.h"

namespace tutti::test {
namespace {

using Rows = std::map<std::uint32_t, std::vector<float>>;

/// A table of 10 rows of 3, and room for two lists of it and their sum.
struct Table {
  Table()
      : plan({{.name = "table",
               .shape = {10, 3},
               .strides = {3, 1},
               .count = 30,
               .dtype = DType::float32,
               .row_sparse = true}},
             {}),
        memory(3 * RowRoom::bytes(plan.parameters()[0]) / sizeof(std::uint64_t)) {}
  RowRoom room(std::size_t k) {
    auto* const begin = reinterpret_cast<std::byte*>(memory.data());
    return {begin + k * RowRoom::bytes(plan.parameters()[0]), plan.parameters()[0]};
  }
  Plan plan;
  std::vector<std::uint64_t> memory;
};

Rows rows_of(const RowList& list) {
  Rows rows;
  for (std::size_t k = 0; k < list.rows.size(); ++k) {
    const auto* const at = reinterpret_cast<const float*>(list.values) + 3 * k;
    EXPECT_TRUE(rows.empty() || rows.rbegin()->first < list.rows[k]) << "not ascending";
    rows[list.rows[k]] = {at, at + 3};
  }
  return rows;
}

TEST(RowRoom, EntriesOfOneRowAreAddedInTheirOrderAndWeighted) {
  Table table;
  const std::vector<std::int64_t> rows = {7, 2, 7, 7};
  // 1 + 1e8 − 1e8 is 0 in float32, in this order alone.
  const std::vector<float> values = {1, 1, 1, 5, 6, 7, 1e8f, 2, 3, -1e8f, 3, 4};
  double largest = 0;
  auto room = table.room(0);
  EXPECT_TRUE(room.list().rows.empty()) << "zero-filled memory";
  room.gather({rows.data(), values.data(), 4}, 2.0, &largest);
  EXPECT_EQ(rows_of(room.list()), (Rows{{2, {10, 12, 14}}, {7, {0, 12, 16}}}));
  EXPECT_EQ(largest, 16);
  room.clear();
  EXPECT_TRUE(room.list().rows.empty());
}

TEST(RowRoom, ARowThatOneListLacksIsTheOthersBitForBit) {
  Table table;
  const std::vector<std::int64_t> rows_a = {1, 4};
  const std::vector<float> values_a = {-0.0f, 1, 2, 3, 4, 5};
  const std::vector<std::int64_t> rows_b = {4, 9};
  const std::vector<float> values_b = {10, 20, 30, -0.0f, 8, 9};
  table.room(0).gather({rows_a.data(), values_a.data(), 2}, 1, nullptr);
  table.room(1).gather({rows_b.data(), values_b.data(), 2}, 1, nullptr);
  table.room(2).add(table.room(0).list(), table.room(1).list());
  const auto sum = rows_of(table.room(2).list());
  EXPECT_EQ(sum, (Rows{{1, {0, 1, 2}}, {4, {13, 24, 35}}, {9, {0, 8, 9}}}));
  EXPECT_TRUE(std::signbit(sum.at(1)[0]));
  EXPECT_TRUE(std::signbit(sum.at(9)[0]));
}

TEST(RowRoom, GreaterRowsAreAppended) {
  Table table;
  const std::vector<std::int64_t> first = {0};
  const std::vector<std::int64_t> second = {5, 6};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  table.room(0).gather({first.data(), values.data(), 1}, 1, nullptr);
  table.room(1).gather({second.data(), values.data(), 2}, 1, nullptr);
  auto sum = table.room(2);
  sum.append(table.room(0).list());
  sum.append(table.room(1).list());
  EXPECT_EQ(rows_of(sum.list()), (Rows{{0, {1, 2, 3}}, {5, {1, 2, 3}}, {6, {4, 5, 6}}}));
}

}  // namespace
}  // namespace tutti::test
