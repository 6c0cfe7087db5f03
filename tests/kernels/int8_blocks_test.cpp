#include "kernels/int8_blocks.h"

#include <gmock/gmock.h>

#include <limits>

#include "every_target.h"
#include "fold_runner.h"
#include "int8_model.h"

namespace tutti {
namespace {

class Int8Blocks : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Int8Blocks);

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

/// Makes values of all magnitudes; those of a block are near each other.
std::vector<float> random_finite(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> value;
  std::vector<float> values(count);
  int exponent = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 256 == 0) exponent = static_cast<int>(random() % 280) - 150;
    values[i] = random() % 9 == 0 ? -0.0F : std::ldexp(value(random), exponent);
    if (!std::isfinite(values[i])) values[i] = std::numeric_limits<float>::max();
  }
  return values;
}

std::vector<float> placed(Placed<float>& values, std::size_t count) {
  std::vector<float> read;
  for (std::size_t i = 0; i < count; ++i) read.push_back(values.at(i));
  EXPECT_TRUE(values.guards_intact());
  return read;
}

/// Everything that is done with the values, at an offset, gives what the model gives.
void is_the_model(const std::vector<float>& values, std::size_t offset) {
  const auto size = values.size();
  const auto count = static_cast<std::int64_t>(size);
  const auto expected = test::as_int8(values);
  Placed<float> from(values, offset);
  Placed<std::byte> blocks(std::vector<std::byte>(int8_bytes(count)), offset);
  auto* const written = static_cast<std::byte*>(blocks.data());
  ASSERT_EQ(to_int8(written, static_cast<const float*>(from.data()), count), -1);
  EXPECT_TRUE(blocks.guards_intact());

  Placed<float> read(std::vector<float>(size), offset);
  from_int8(static_cast<float*>(read.data()), written, 0, count);
  EXPECT_EQ(bits_of(placed(read, size)), bits_of(expected));

  Placed<float> rounded(values, offset);
  round_to_int8(static_cast<float*>(rounded.data()), count);
  EXPECT_EQ(bits_of(placed(rounded, size)), bits_of(expected));

  Placed<float> left(values, offset);
  subtract_int8(static_cast<float*>(left.data()), written, count);
  const auto residual = placed(left, size);
  for (std::size_t i = 0; i < size; ++i) {
    ASSERT_EQ(residual[i], values[i] - expected[i]);
    ASSERT_EQ(residual[i] + expected[i], values[i]) << "something was lost";
  }
}

// promise: codec.h#int8_codec
TEST_P(Int8Blocks, AreThoseOfTheModel) {
  for (const std::size_t size : {0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 511, 513, 4097}) {
    for (const std::size_t offset : {0, 1, 3, 15}) {
      SCOPED_TRACE(testing::Message() << size << " at " << offset);
      is_the_model(random_finite(size, size + offset), offset);
    }
  }
}

TEST_P(Int8Blocks, AreReadFromAnywhere) {
  const auto values = random_finite(1000, 4);
  const auto expected = test::as_int8(values);
  std::vector<std::byte> blocks(int8_bytes(1000));
  ASSERT_EQ(to_int8(blocks.data(), values.data(), 1000), -1);
  for (const std::size_t begin : {0, 1, 63, 255, 256, 257, 511, 700, 999}) {
    for (const std::size_t count : {0, 1, 2, 17, 256, 300, 489}) {
      if (begin + count > 1000) continue;
      Placed<float> read(std::vector<float>(count, -1.0F), 1);
      from_int8(static_cast<float*>(read.data()), blocks.data(), static_cast<std::int64_t>(begin),
                static_cast<std::int64_t>(count));
      const auto at = expected.begin() + static_cast<std::ptrdiff_t>(begin);
      EXPECT_EQ(bits_of(placed(read, count)),
                bits_of({at, at + static_cast<std::ptrdiff_t>(count)}));
    }
  }
}

TEST_P(Int8Blocks, TiesAreRoundedToTheEvenInteger) {
  // A product with 1 ÷ scale would miss half of the ties of 0x1.ff96 and 0x1.fec2.
  for (const float scale : {1.0F, 0x1.ff96p-20F, 0x1.fec2p90F, 0x1.0001p-60F}) {
    std::vector<float> values = {127 * scale};
    std::vector<float> expected = values;
    for (int k = -64; k < 64; ++k) {
      values.push_back((static_cast<float>(k) + 0.5F) * scale);
      expected.push_back(static_cast<float>(k % 2 == 0 ? k : k + 1) * scale);
    }
    round_to_int8(values.data(), static_cast<std::int64_t>(values.size()));
    EXPECT_EQ(values, expected) << scale;
  }
}

TEST_P(Int8Blocks, HoldWhatIsLargestAndSmallest) {
  using Limits = std::numeric_limits<float>;
  for (const std::size_t size : {1, 5, 256}) {
    for (const float largest : {Limits::max(), Limits::min(), Limits::denorm_min(), 0.0F,
                                Limits::max() / 127, 127 * Limits::min(), 126 * Limits::min()}) {
      std::vector<float> values(size, -largest);
      values[size / 2] = largest;
      is_the_model(values, 0);
    }
  }
}

TEST_P(Int8Blocks, WhatIsNotFiniteIsFound) {
  const auto values = random_finite(700, 8);
  std::vector<std::byte> blocks(int8_bytes(700));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t at : {0, 3, 255, 256, 511, 512, 699}) {
      auto some = values;
      some[at] = bad;
      EXPECT_EQ(to_int8(blocks.data(), some.data(), 700), static_cast<std::int64_t>(at));
      // Its block stays.
      auto rounded = some;
      round_to_int8(rounded.data(), 700);
      auto expected = test::as_int8(values);
      for (std::size_t i = at / 256 * 256; i < std::min<std::size_t>(at / 256 * 256 + 256, 700);
           ++i) {
        expected[i] = some[i];
      }
      EXPECT_EQ(bits_of(rounded), bits_of(expected));
    }
  }
}

TEST(Int8Bytes, AreFourBytesAndOneForEachValue) {
  EXPECT_EQ(int8_bytes(0), 0u);
  EXPECT_EQ(int8_bytes(1), 5u);
  EXPECT_EQ(int8_bytes(256), 260u);
  EXPECT_EQ(int8_bytes(257), 265u);
  EXPECT_EQ(int8_bytes(std::int64_t{1} << 40), (std::size_t{1} << 40) + (std::size_t{1} << 34));
}

}  // namespace
}  // namespace tutti
