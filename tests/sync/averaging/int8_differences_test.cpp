// Differences in 8-bit integers: what is sent, what is kept, and their mean.

#include "sync/averaging/int8_differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "kernels/int8_blocks.h"
#include "kernels/int8_model.h"
#include "sync/gradient_oracle.h"
#include "sync/plan/tile_share.h"

namespace tutti::test {
namespace {

using ::testing::Each;

std::vector<float> read(const std::vector<std::byte>& message, std::size_t count) {
  std::vector<float> values(count);
  from_int8(values.data(), message.data(), 0, static_cast<std::int64_t>(count));
  return values;
}

// promise: averaging.h#int8
TEST(Int8Differences, WhatAMessageLacksIsKeptAndSentWithTheNextOne) {
  for (const std::size_t count : {1, 255, 256, 257, 4096}) {
    auto copy = random_values(1, count);
    const auto before = random_values(2, count);
    auto residual = random_values(3, count);
    std::vector<std::byte> message(int8_bytes(static_cast<std::int64_t>(count)));
    for (int round = 0; round < 3; ++round) {
      std::vector<float> whole(count);
      for (std::size_t i = 0; i < count; ++i) whole[i] = (copy[i] - before[i]) + residual[i];
      const auto sent = as_int8(whole);
      write_difference(message.data(), copy.data(), before.data(), residual.data(),
                       static_cast<std::int64_t>(count));
      EXPECT_EQ(read(message, count), sent);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(residual[i], whole[i] - sent[i]);
        EXPECT_EQ(double{sent[i]} + double{residual[i]}, double{whole[i]}) << "exactly";
      }
      for (auto& x : copy) x *= 0.9F;
    }
  }
}

TEST(Int8Differences, TheMeanIsAddedInEightBitsAndWhatTheyLackIsKept) {
  for (const std::size_t count : {1, 256, 300}) {
    const auto before = random_values(2, count);
    auto residual = random_values(3, count);
    for (int round = 0; round < 3; ++round) {
      const auto mean = random_values(4 + round, count);
      std::vector<float> whole(count);
      for (std::size_t i = 0; i < count; ++i) whole[i] = mean[i] + residual[i];
      const auto sent = as_int8(whole);
      auto values = mean;
      add_difference(values.data(), before.data(), residual.data(),
                     static_cast<std::int64_t>(count));
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(values[i], before[i] + sent[i]);
        EXPECT_EQ(residual[i], whole[i] - sent[i]);
      }
    }
  }
}

TEST(Int8Differences, TheMeanOfMessagesIsAlongTheTreeInFloat32) {
  constexpr std::size_t kCount = kTile + 700;
  for (const std::size_t replicas : {1, 2, 3, 5, 8}) {
    std::vector<std::vector<std::byte>> messages;
    std::vector<const std::byte*> pointers;
    std::vector<std::optional<Values>> sent;
    for (std::size_t r = 0; r < replicas; ++r) {
      const auto values = random_values(r, kCount);
      messages.emplace_back(int8_bytes(kCount));
      to_int8(messages.back().data(), values.data(), kCount);
      sent.emplace_back(as_int8(values));
    }
    for (const auto& message : messages) pointers.push_back(message.data());
    const auto sum = *fold_range(sent, 0, replicas);
    MeanOfMessages mean(replicas);
    std::vector<float> values(700);
    mean.take(pointers, kTile, 700, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], sum[kTile + i] / static_cast<float>(replicas)) << replicas;
    }
  }
}

TEST(Int8Differences, OneThatIsNotFiniteIsNaNForAll) {
  for (const float bad : {INFINITY, NAN}) {
    std::vector<float> copy(300, 1);
    copy[7] = bad;
    const std::vector<float> before(300);
    std::vector<float> residual(300);
    std::vector<std::byte> message(int8_bytes(300));
    write_difference(message.data(), copy.data(), before.data(), residual.data(), 300);
    for (const float value : read(message, 300)) EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace tutti::test
