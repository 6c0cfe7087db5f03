// Messages, what is kept of them, and their sum, each against plain arrays.

#include "sync/coded/message_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "support/thread_ranks.h"
#include "sync/coded/bucket_encoder.h"
#include "sync/coded/message_sum.h"
#include "sync/gradient_oracle.h"
#include "sync/plan/tile_share.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

MessageStore::Layout layout(int kept) {
  return {.logical_workers = 2, .buckets = {{0, 1}, {2}}, .bounds = {4096, 65536}, .kept = kept};
}

TEST(MessageStore, EachPartHasRoomOfItsOwn) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    const auto plan = plan_of({65, 3, 5000});
    StepMemory memory(group, "model");
    MessageStore store(memory, plan, layout(2), "model");
    EXPECT_EQ(store.bucket_of(1), 0u);
    EXPECT_EQ(store.bucket_of(2), 1u);
    if (group.rank() == 0) {
      // All that there is, each filled with a byte of its own.
      std::vector<std::pair<std::byte*, std::size_t>> parts;
      for (std::size_t l = 0; l < 2; ++l) {
        for (std::size_t g = 0; g < 2; ++g) parts.emplace_back(store.message(l, g), store.room(g));
        for (std::size_t p = 0; p < 3; ++p) {
          const auto bytes = plan.bytes_of(p);
          for (const auto kept : {Kept::residual, Kept::velocity}) {
            parts.emplace_back(reinterpret_cast<std::byte*>(store.kept(kept, l, p)), bytes);
            parts.emplace_back(reinterpret_cast<std::byte*>(store.next(kept, l, p)), bytes);
          }
        }
      }
      for (std::size_t k = 0; k < parts.size(); ++k) {
        std::memset(parts[k].first, static_cast<int>(k + 1), parts[k].second);
      }
      for (std::size_t k = 0; k < parts.size(); ++k) {
        EXPECT_TRUE(std::all_of(parts[k].first, parts[k].first + parts[k].second, [&](std::byte b) {
          return b == static_cast<std::byte>(k + 1);
        })) << k;
      }
    }
    group.barrier();
    EXPECT_EQ(*reinterpret_cast<const std::byte*>(store.message(0, 0)), std::byte{1});
    group.barrier();
  });
}

TEST(MessageStore, WhatIsKeptTurnsPerParameterAndAStepThatIsDroppedTurnsNothing) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    MessageStore store(memory, plan_of({65, 3, 5000}), layout(1), "model");
    *store.next(Kept::residual, 1, 0) = 7;
    EXPECT_EQ(*store.kept(Kept::residual, 1, 0), 0) << "the step was dropped";
    EXPECT_EQ(store.next_residuals(1, 0), store.next(Kept::residual, 1, 0));
    store.turn(1, 0);
    EXPECT_EQ(*store.kept(Kept::residual, 1, 0), 7);
    EXPECT_EQ(*store.kept(Kept::residual, 0, 0), 0) << "another logical worker's";
    EXPECT_EQ(store.next_residuals(1, 0), nullptr) << "those of the bucket lie apart";
    store.turn(1, 1);
    EXPECT_EQ(store.next_residuals(1, 0), store.next(Kept::residual, 1, 0));
    store.sum_values(1).fetch_add(5);
    EXPECT_EQ(store.sum_values(1).load(), 5);
    EXPECT_EQ(store.sum_values(0).load(), 0);
    store.header(1, 1).values = 9;
    EXPECT_EQ(store.header(0, 1).values, 0);
  });
}

/// The values of a message with the codec, sent and read again.
Values sent(const Codec& codec, const Values& values, std::vector<std::byte>& message) {
  const EncodeContext context{.count = static_cast<std::int64_t>(values.size())};
  message.resize(codec.bound(context.count, context) + 64);
  const auto encoded = codec.encode(values, context, message.data());
  message.resize(encoded.bytes);
  Values read(values.size());
  codec.decode(message, context, 0, read);
  return read;
}

TEST(MessageSum, ListsAndArraysGiveTheSameSumAlongTheTree) {
  const std::vector<double> shares = {0.5, 0.25, 0.125, 0.0625, 0.0625};
  for (const char* name : {"topk:0.01", "threshold:1000", "half", "int8"}) {
    const auto codec = codec_of(name);
    std::vector<std::vector<std::byte>> messages(shares.size());
    std::vector<std::optional<Values>> weighted;
    std::vector<SumTerm> terms;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      auto values = sent(*codec, random_values(k + 3, 6000), messages[k]);
      for (auto& value : values) value *= static_cast<float>(shares[k]);
      weighted.emplace_back(std::move(values));
      terms.push_back({.message = messages[k],
                       .context = {.count = 6000},
                       .first = 0,
                       .share = shares[k],
                       .place = {static_cast<std::int64_t>(k), 1}});
    }
    const auto expected = *fold_range(weighted, 0, weighted.size());
    MessageSum sum(*codec, static_cast<std::int64_t>(shares.size()));
    Values got(6000);
    for (std::int64_t begin = 0; begin < 6000; begin += kTile) {
      const auto count = std::min<std::int64_t>(kTile, 6000 - begin);
      sum.take(
          terms, begin,
          std::span(got).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    }
    EXPECT_EQ(got, expected) << name;
    EXPECT_GT(std::ranges::count_if(got, [](float x) { return x != 0; }), 30) << name;
  }
}

/// One bucket of two parameters, encoded for one logical worker.
struct Encoder {
  explicit Encoder(const Group& group, Compression how)
      : plan(plan_of({4500, 20})),
        compression(std::move(how)),
        memory(group, "model"),
        store(memory, plan,
              {.logical_workers = 1,
               .buckets = {{0, 1}},
               .bounds = {65536},
               .kept = compression.error_feedback ? 1 : 0},
              "model"),
        encoder(plan, store, compression, {}) {}
  void encode(const std::vector<Values>& gradients) {
    const std::vector<std::uint32_t> touched = {0, 1};
    encoder.encode({.logical = 0, .bucket = 0, .touched = touched, .step = 1},
                   [&](std::uint32_t p) -> BucketEncoder::TileFold {
                     return [&gradients, p](std::int64_t begin, std::int64_t count, void* to) {
                       std::memcpy(to, gradients[p].data() + begin,
                                   static_cast<std::size_t>(count) * sizeof(float));
                     };
                   });
  }
  Plan plan;
  Compression compression;
  StepMemory memory;
  MessageStore store;
  BucketEncoder encoder;
};

TEST(BucketEncoder, SendsTheLargestOfTheBucketAndKeepsTheRest) {
  run_thread_ranks(1, [](const Job& job) {
    Encoder bucket(Group(job), {.codec = top_k_codec(10.0 / 4520)});
    const std::vector<Values> gradients = {random_values(1, 4500), random_values(2, 20)};
    Values all = gradients[0];
    all.insert(all.end(), gradients[1].begin(), gradients[1].end());
    Values left(4520);
    for (int step = 0; step < 3; ++step) {
      bucket.encode(gradients);
      // The model: what was left plus the gradient; the ten largest go.
      for (std::size_t i = 0; i < all.size(); ++i) left[i] += all[i];
      std::vector<std::size_t> order(all.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
        return std::abs(left[a]) > std::abs(left[b]);
      });
      const auto& header = bucket.store.header(0, 0);
      EXPECT_STREQ(header.refusal, "");
      EXPECT_EQ(header.values, 10);
      EXPECT_EQ(header.is_dense, 0u);
      const std::span message(bucket.store.message(0, 0), header.bytes);
      const auto list = bucket.compression.codec->list_of(message);
      ASSERT_TRUE(list);
      std::set<std::size_t> sent(order.begin(), order.begin() + 10);
      ASSERT_EQ(list->indices.size(), 10u);
      for (std::size_t k = 0; k < 10; ++k) {
        EXPECT_TRUE(sent.contains(list->indices[k]));
        EXPECT_EQ(list->values[k], left[list->indices[k]]);
        left[list->indices[k]] = 0;
      }
      for (std::size_t p = 0; p < 2; ++p) {
        const auto* const kept = bucket.store.next(Kept::residual, 0, p);
        const auto* const expected = left.data() + (p == 0 ? 0 : 4500);
        for (std::size_t i = 0; i < gradients[p].size(); ++i) ASSERT_EQ(kept[i], expected[i]);
        bucket.store.turn(0, p);
      }
    }
  });
}

TEST(BucketEncoder, WhatCannotBeSentIsSaidInTheHeader) {
  run_thread_ranks(1, [](const Job& job) {
    const auto refusal_of = [&](CodecPointer codec, float value) {
      Encoder bucket(Group(job), {.codec = std::move(codec)});
      std::vector<Values> gradients = {Values(4500, 1.0f), Values(20, 1.0f)};
      gradients[1][3] = value;
      bucket.encode(gradients);
      const auto& header = bucket.store.header(0, 0);
      return std::string(header.is_overflow != 0 ? "overflow: " : "") + header.refusal;
    };
    EXPECT_EQ(refusal_of(half_codec(), 1), "");
    EXPECT_THAT(refusal_of(half_codec(), 1e5f), HasSubstr("the gradient of \"p1\""));
    EXPECT_THAT(refusal_of(half_codec(), HUGE_VALF), HasSubstr("overflow: the gradient of \"p1\""));
    EXPECT_THAT(refusal_of(int8_codec(), HUGE_VALF), HasSubstr("overflow: the gradient of \"p1\""));
    EXPECT_THAT(refusal_of(int8_codec(), NAN), HasSubstr("overflow: the gradient of \"p1\""));
    EXPECT_THAT(refusal_of(top_k_codec(0.1), NAN), HasSubstr("overflow: the gradient of \"p1\""));
  });
}

}  // namespace
}  // namespace tutti::test
