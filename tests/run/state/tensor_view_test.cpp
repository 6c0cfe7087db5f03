#include "run/state/tensor_view.h"

#include <numeric>

#include <gmock/gmock.h>

namespace tutti::test {
namespace {

using ::testing::ElementsAre;

/// The numbers 0, 1, 2 … as they lie in memory.
std::vector<std::int16_t> counted(std::size_t count) {
  std::vector<std::int16_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::int16_t{0});
  return numbers;
}

TensorView view(std::vector<std::int16_t>& numbers, std::vector<std::int64_t> shape,
                std::vector<std::int64_t> strides) {
  return {.name = "x",
          .type = StoredType::I16,
          .shape = std::move(shape),
          .strides = std::move(strides),
          .data = reinterpret_cast<std::byte*>(numbers.data())};
}

std::vector<std::int16_t> rows(const TensorView& view) {
  std::vector<std::byte> copy;
  const auto bytes = rows_of(view, copy);
  const auto* const begin = reinterpret_cast<const std::int16_t*>(bytes.data());
  return {begin, begin + bytes.size() / sizeof(std::int16_t)};
}

TEST(TensorView, RowMajorIsReadWhereItLies) {
  auto numbers = counted(6);
  const auto some = view(numbers, {2, 1, 3}, {3, 77, 1});  // an extent of 1 has any stride
  std::vector<std::byte> copy;
  EXPECT_TRUE(is_row_major(some));
  EXPECT_EQ(rows_of(some, copy).data(), some.data);
  EXPECT_TRUE(copy.empty());
  EXPECT_EQ(bytes_of(some), 12U);
}

TEST(TensorView, AScalarHasOneElementAndAnExtentOf0None) {
  auto numbers = counted(2);
  EXPECT_THAT(rows(view(numbers, {}, {})), ElementsAre(0));
  EXPECT_THAT(rows(view(numbers, {3, 0}, {5, 2})), ElementsAre());
}

TEST(TensorView, ElementsComeRowByRowWhateverTheirStrides) {
  auto numbers = counted(12);
  EXPECT_THAT(rows(view(numbers, {2, 3}, {1, 2})), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(rows(view(numbers, {2, 2}, {6, 2})), ElementsAre(0, 2, 6, 8));
  // Channels last: 1 × 2 × 2 × 3.
  EXPECT_THAT(rows(view(numbers, {1, 2, 2, 3}, {12, 1, 6, 2})),
              ElementsAre(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11));
}

TEST(TensorView, SetRowsIsTheWayBack) {
  auto from = counted(12);
  std::vector<std::int16_t> to(12, -1);
  const auto source = view(from, {2, 2, 2}, {6, 1, 2});
  const auto target = view(to, {2, 2, 2}, {1, 6, 3});
  std::vector<std::byte> copy;
  set_rows(target, rows_of(source, copy));
  EXPECT_EQ(rows(target), rows(source));
  EXPECT_THAT(to, ElementsAre(0, 6, -1, 2, 8, -1, 1, 7, -1, 3, 9, -1));
}

}  // namespace
}  // namespace tutti::test
