#include "kernels/norm.h"

#include <gmock/gmock.h>

#include <numeric>

#include "base/check.h"
#include "every_target.h"
#include "fold_runner.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;
using testing::HasSubstr;
using testing::ThrowsMessage;

double model_tree(const std::vector<double>& values) {
  return model::tree(Reduction::sum, 0, static_cast<int>(values.size()),
                     [&](int i) { return values[static_cast<std::size_t>(i)]; });
}

template <class T>
std::vector<double> model_of(const std::vector<T>& values) {
  std::vector<double> blocks;
  for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
    std::vector<double> sums(16);
    for (std::size_t i = begin; i < std::min(begin + 4096, values.size()); ++i) {
      const volatile double x = static_cast<double>(model::widen(values[i]));
      const volatile double square = x * x;
      sums[(i - begin) % 16] += square;
    }
    blocks.push_back(model_tree(sums));
  }
  return blocks;
}

template <class T>
std::vector<double> squares(const void* data, std::size_t count) {
  std::vector<double> blocks((count + 4095) / 4096, -1);
  squares_of_blocks(data, model::DTypeOf<T>::value, static_cast<std::int64_t>(count), blocks);
  return blocks;
}

class Norm : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Norm);

template <class T>
void is_the_model() {
  for (const std::size_t size : {0, 1, 15, 16, 17, 63, 4095, 4096, 4097, 8192, 100003}) {
    const auto values = model::random_values<T>(size, size);
    const auto expected = model_of(values);
    for (const std::size_t offset : {0, 1, 3, 15}) {
      SCOPED_TRACE(testing::Message() << size << " at " << offset);
      Placed<T> data(values, offset);
      EXPECT_EQ(squares<T>(data.data(), size), expected);
    }
    // Cut into runs of whole blocks, as workers own them.
    for (const std::size_t blocks : {1, 2, 3}) {
      std::vector<double> together;
      for (std::size_t begin = 0; begin < size; begin += blocks * 4096) {
        const auto run = squares<T>(values.data() + begin, std::min(blocks * 4096, size - begin));
        together.insert(together.end(), run.begin(), run.end());
      }
      EXPECT_EQ(together, expected);
    }
  }
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Norm, Float32) { is_the_model<float>(); }
TEST_P(Norm, Float64) { is_the_model<double>(); }
TEST_P(Norm, Float16) { is_the_model<Half>(); }
TEST_P(Norm, BFloat16) { is_the_model<BFloat>(); }

// Without this the tests above could not tell the order from any other.
// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Norm, AnotherOrderHasOtherBits) {
  const auto values = model::random_values<double>(4096, 1);
  double one_after_another = 0;
  for (const double x : values) one_after_another += x * x;
  EXPECT_NE(squares<double>(values.data(), 4096)[0], one_after_another);
}

// Why slices are cut between blocks and nowhere else.
// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Norm, BlocksCutElsewhereHaveOtherBits) {
  const auto values = model::random_values<double>(16384, 1);
  std::vector<double> cut;
  for (const auto& [begin, end] : {std::pair{0, 5000}, {5000, 16384}}) {
    const auto part = squares<double>(values.data() + begin, static_cast<std::size_t>(end - begin));
    cut.insert(cut.end(), part.begin(), part.end());
  }
  EXPECT_NE(model_tree(cut), model_tree(squares<double>(values.data(), values.size())));
}

TEST_P(Norm, SquaresAreTakenInFloat64) {
  const std::vector<float> large(5, 3e38F);
  EXPECT_EQ(squares<float>(large.data(), 5), model_of(large));
  EXPECT_TRUE(std::isfinite(squares<float>(large.data(), 5)[0]));
  const std::vector<float> small(1, 0x1p-149F);
  EXPECT_EQ(squares<float>(small.data(), 1)[0], 0x1p-298);
}

TEST_P(Norm, WhatIsNotFiniteShows) {
  for (const std::size_t at : {0, 17, 4096, 4113}) {
    std::vector<float> values(4114, 1);
    values[at] = NAN;
    EXPECT_TRUE(std::isnan(squares<float>(values.data(), 4114)[at / 4096]));
    values[at] = -INFINITY;
    EXPECT_EQ(squares<float>(values.data(), 4114)[at / 4096], INFINITY);
    EXPECT_TRUE(std::isfinite(squares<float>(values.data(), 4114)[1 - at / 4096]));
  }
}

TEST(TreeSum, IsTheCanonicalTree) {
  EXPECT_EQ(tree_sum({}), 0);
  int other_from_the_left = 0;
  for (std::size_t n = 1; n <= 130; ++n) {
    const auto values = model::random_values<double>(n, n);
    EXPECT_EQ(tree_sum(values), model_tree(values));
    other_from_the_left += tree_sum(values) != std::accumulate(values.begin(), values.end(), 0.0);
  }
  EXPECT_GT(other_from_the_left, 60);
}

TEST(NormChecks, RefuseWhatHasNoBlocks) {
  const std::vector<float> values(8);
  std::vector<double> blocks(1);
  const auto of = [&](DType dtype, std::int64_t count) {
    return [&, dtype, count] { squares_of_blocks(values.data(), dtype, count, blocks); };
  };
  EXPECT_THAT(of(DType::int32, 8), ThrowsMessage<InternalError>(HasSubstr("squares of int32")));
  EXPECT_THAT(of(DType::float32, -1), ThrowsMessage<InternalError>(HasSubstr("-1 elements")));
  EXPECT_THAT(of(DType::float32, 0),
              ThrowsMessage<InternalError>(HasSubstr("1 blocks of 0 elements")));
  EXPECT_THAT(of(DType::float32, 4097),
              ThrowsMessage<InternalError>(HasSubstr("1 blocks of 4097 elements")));
}

}  // namespace
}  // namespace tutti
