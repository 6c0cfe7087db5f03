#include "tutti/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "codec/codec_model.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

struct Written {
  Encoded encoded;
  std::vector<std::byte> message;
};

Written write_message(const Codec& codec, const std::vector<float>& values,
                      const EncodeContext& exchange = {}) {
  const auto bound = codec.bound(static_cast<std::int64_t>(values.size()), exchange);
  // What lies behind must stay as it is.
  std::vector<std::byte> message(bound + 64, std::byte{0x5a});
  auto encoded = codec.encode(values, exchange, message.data());
  EXPECT_LE(encoded.bytes, bound);
  for (std::size_t i = bound; i < message.size(); ++i) EXPECT_EQ(message[i], std::byte{0x5a});
  message.resize(encoded.bytes);
  return {std::move(encoded), std::move(message)};
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

std::vector<float> read_message(const Codec& codec, const Written& written, std::size_t count) {
  std::vector<float> values(count);
  // In pieces that are off every round number.
  for (std::size_t begin = 0; begin < count; begin += 37) {
    const auto n = std::min<std::size_t>(37, count - begin);
    codec.decode(written.message, {.count = static_cast<std::int64_t>(count)},
                 static_cast<std::int64_t>(begin), {values.data() + begin, n});
  }
  return values;
}

std::vector<float> draw(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> value(0, 0.03f);  // all magnitudes below 1
  std::vector<float> values(count);
  for (auto& v : values) v = random() % 11 == 0 ? 0.0f : value(random);
  return values;
}

const std::vector<std::string> kCodecs = {"half",        "bfloat16",  "int8",   "threshold:0.05",
                                          "threshold:0", "topk:0.05", "topk:1", "topk:0.0001"};

// promise: codec.h#bfloat16_codec, codec.h#bound, codec.h#decode
TEST(Codec, SendsWhatAScalarModelSendsHoweverItTravels) {
  for (const auto& name : kCodecs) {
    const auto codec = codec_of(name);
    EXPECT_EQ(codec->name(), name);
    for (const std::size_t count : {1u, 2u, 63u, 64u, 65u, 1000u, 4097u}) {
      const auto values = draw(count, count);
      const auto expected = sent_by(name, values);
      for (const auto message_format :
           {MessageFormat::by_size, MessageFormat::sparse, MessageFormat::dense}) {
        const auto written = write_message(*codec, values, {3, message_format});
        ASSERT_EQ(written.encoded.refusal, "");
        EXPECT_EQ(bits_of(read_message(*codec, written, count)), bits_of(expected))
            << name << ", " << count << " values";
        auto left = values;
        codec->subtract(written.message, {.count = static_cast<std::int64_t>(count)}, left);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(left[i], values[i] - expected[i]) << name << ", value " << i;
          ASSERT_EQ(left[i] + expected[i], values[i]) << name << ": something was lost";
        }
      }
    }
  }
}

// promise: codec.h#MessageList, codec.h#top_k_codec
TEST(Codec, TopKTakesExactlySoManyAndOfEqualOnesTheLowerIndex) {
  const std::vector<float> ties = {0.5f, -0.25f, 0.25f, -0.5f, 0.25f, 0.0f, -0.5f, 0.125f};
  const auto codec = top_k_codec(0.25);
  const auto written = write_message(*codec, ties, {1, MessageFormat::sparse});
  EXPECT_EQ(written.encoded.values, 2);
  EXPECT_EQ(bits_of(read_message(*codec, written, ties.size())),
            bits_of({0.5f, -0.0f, -0.0f, -0.5f, -0.0f, -0.0f, -0.0f, -0.0f}));
  // round(0.3125 · 8) = round(2.5) = 3; of so few values at least one.
  EXPECT_EQ(write_message(*top_k_codec(0.3125), ties).encoded.values, 3);
  EXPECT_EQ(write_message(*top_k_codec(1e-9), ties).encoded.values, 1);
  EXPECT_EQ(write_message(*top_k_codec(1), ties).encoded.values, 8);
}

// Lin et al. 2018, §3.3: 75 %, 93.75 %, 98.4375 %, 99.6 % of the values stay at first.
// promise: codec.h#top_k_codec
TEST(Codec, TopKMayBeginWithMore) {
  const auto values = draw(10'000, 1);
  const auto sent_in = [&](const Codec& codec, std::int64_t step) {
    return write_message(codec, values, {.message_format = MessageFormat::sparse, .step = step})
        .encoded.values;
  };
  const auto codec = top_k_codec(0.001, 8);
  const std::vector<std::int64_t> expected = {2500, 2500, 625, 625, 156, 156, 39, 39, 10, 10};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(sent_in(*codec, static_cast<std::int64_t>(i) + 1), expected[i]) << "step " << i + 1;
  }
  // Never less than afterwards; fewer steps than there are quarters.
  EXPECT_EQ(sent_in(*top_k_codec(0.05, 8), 8), 500);
  EXPECT_EQ(sent_in(*top_k_codec(0.001, 1), 1), 2500);
  EXPECT_EQ(sent_in(*top_k_codec(0.001, 1), 2), 10);
}

// promise: codec.h#threshold_codec
TEST(Codec, AThresholdIsInclusive) {
  const auto written =
      write_message(*threshold_codec(0.25), {0.25f, -0.25f, 0.24999999f, 0.5f, -0.1f});
  EXPECT_EQ(written.encoded.values, 3);
}

// promise: codec.h#int8_codec, codec.h#sum_bytes
TEST(Codec, BytesAreThoseOfTheFormula) {
  const auto values = draw(1000, 1);
  EXPECT_EQ(write_message(*half_codec(), values).encoded.bytes, 2000u);
  EXPECT_EQ(half_codec()->sum_bytes(1000, 1000, {}), 2000u);
  EXPECT_EQ(write_message(*bfloat16_codec(), values).encoded.bytes, 2000u);
  // One scale for 256 values, and one for what is left.
  EXPECT_EQ(write_message(*int8_codec(), values).encoded.bytes, 1000u + 4 * 4);
  EXPECT_EQ(int8_codec()->sum_bytes(1000, 1000, {}), 1000u + 4 * 4);
  EXPECT_EQ(int8_codec()->tile_bytes(4096), 4096u + 16 * 4);
  EXPECT_GE(4.0 * 4096 / static_cast<double>(int8_codec()->tile_bytes(4096)), 3.9);
  // 8 + 8·k as a list, 8 + 4·n as an array: whichever is fewer, with the sum's list counted.
  const auto codec = top_k_codec(0.1);
  EXPECT_EQ(write_message(*codec, values, {4, MessageFormat::by_size}).encoded.bytes, 8u + 8 * 100);
  EXPECT_EQ(write_message(*codec, values, {9, MessageFormat::by_size}).encoded.bytes,
            8u + 4 * 1000);
  EXPECT_TRUE(write_message(*codec, values, {9, MessageFormat::by_size}).encoded.is_dense);
  EXPECT_EQ(write_message(*codec, values, {9, MessageFormat::sparse}).encoded.bytes, 8u + 8 * 100);
  EXPECT_EQ(write_message(*codec, values, {1, MessageFormat::dense}).encoded.bytes, 8u + 4 * 1000);
  EXPECT_EQ(codec->sum_bytes(1000, 300, {4, MessageFormat::by_size}), 8u + 8 * 300);
  EXPECT_EQ(codec->sum_bytes(1000, 501, {4, MessageFormat::by_size}), 8u + 4 * 1000);
}

// promise: codec.h#bfloat16_codec, codec.h#half_codec
TEST(Codec, WhatDoesNotFitIsRefusedByItsIndex) {
  const auto written = write_message(*half_codec(), {1.0f, -65504.0f, -65520.0f, 1e9f});
  EXPECT_THAT(written.encoded.refusal, HasSubstr("-65520 is beyond the range of half"));
  EXPECT_EQ(written.encoded.refused_at, 2);
  EXPECT_EQ(write_message(*bfloat16_codec(), {3e38f}).encoded.refusal, "");
  EXPECT_THAT(write_message(*bfloat16_codec(), {3.4e38f}).encoded.refusal, HasSubstr("bfloat16"));
  std::vector<float> values(600, 1.0f);
  EXPECT_EQ(write_message(*int8_codec(), values).encoded.refusal, "");
  for (const std::size_t at : {0u, 255u, 256u, 599u}) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      auto some = values;
      some[at] = some[599] = bad;
      const auto encoded = write_message(*int8_codec(), some).encoded;
      EXPECT_THAT(encoded.refusal, HasSubstr("is beyond the range of int8"));
      EXPECT_EQ(encoded.refused_at, static_cast<std::int64_t>(at));
    }
  }
}

// promise: codec.h#int8_codec
TEST(Codec, Int8TakesAllThatIsFinite) {
  // The largest values would be sent beyond the range by a rounded scale, and the smallest have no
  // scale of their own and wait in the residual; others become the bytes −127 and 127.
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const auto& values :
       std::vector<std::vector<float>>{{most, -most, most / 200, 1.0f},
                                       {least, -least, 0.0f, -0.0f},
                                       {0x1p-126f, -0x1p-127f, 0x1.8p-127f},
                                       {0x1.234p-120f, least, -0x1p-126f},
                                       {0.0f, -0.0f},
                                       {-1.0f, 1.0f, 0.5f / 127, 1.5f / 127}}) {
    const auto written = write_message(*int8_codec(), values);
    ASSERT_EQ(written.encoded.refusal, "");
    const auto sent = read_message(*int8_codec(), written, values.size());
    EXPECT_EQ(bits_of(sent), bits_of(as_int8(values)));
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::isfinite(sent[i]));
      EXPECT_EQ(sent[i] + (values[i] - sent[i]), values[i]) << "something was lost";
      // Half of a scale, which is a little less than a 127th.
      EXPECT_LE(std::abs(values[i] - sent[i]), std::max(largest / 253, 0x1p-127f));
    }
  }
}

// promise: codec.h#int8_codec
TEST(Codec, ABlockOfInt8KnowsNothingOfTheOthers) {
  auto values = draw(256 + 256 + 3, 9);
  const auto before = read_message(*int8_codec(), write_message(*int8_codec(), values), 515);
  values[256] = 1e6f;  // all of its block that is below 4000 is rounded to 0
  const auto after = read_message(*int8_codec(), write_message(*int8_codec(), values), 515);
  for (std::size_t i = 0; i < 515; ++i) {
    if (i < 256 || i >= 512) {
      EXPECT_EQ(after[i], before[i]);
    } else if (i > 256) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(after[i]), 0u);
    }
  }
}

// promise: codec.h#half_codec, codec.h#int8_codec, codec.h#round_sum
TEST(Codec, ASumIsRoundedOnceToTheFormatOfItsMessages) {
  std::vector<float> sum(2000, 1.0f + 1.0f / 4096);
  half_codec()->round_sum(sum);
  EXPECT_EQ(sum, std::vector<float>(2000, as_half(1.0f + 1.0f / 4096)));
  sum = draw(1000, 5);
  const auto expected = as_int8(sum);
  int8_codec()->round_sum(sum);
  EXPECT_EQ(bits_of(sum), bits_of(expected));
  // One that is not finite is seen to be so, and its block is left as it is.
  sum = draw(1000, 6);
  const auto finite = as_int8(sum);
  sum[300] = NAN;
  sum[999] = -INFINITY;
  const auto before = sum;
  int8_codec()->round_sum(sum);
  for (std::size_t i = 0; i < 1000; ++i) {
    const bool is_left = (i >= 256 && i < 512) || i >= 768;
    EXPECT_EQ(bits_of({sum[i]}), bits_of({is_left ? before[i] : finite[i]})) << i;
  }
  sum = {1.0f + 1.0f / 4096};
  top_k_codec()->round_sum(sum);
  EXPECT_EQ(sum[0], 1.0f + 1.0f / 4096);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

// promise: codec.h#codec_of, codec.h#name, codec.h#threshold_codec
TEST(Codec, NamesAreReadAndOthersRefused) {
  EXPECT_EQ(codec_of("none"), nullptr);
  EXPECT_EQ(codec_of("int8")->name(), "int8");
  EXPECT_EQ(codec_of("threshold")->name(), "threshold:0.05");
  EXPECT_EQ(codec_of("topk")->name(), "topk:0.05");
  EXPECT_EQ(codec_of("topk:0.001")->name(), "topk:0.001");
  EXPECT_EQ(codec_of("topk:0.001:400")->name(), "topk:0.001:400");
  EXPECT_THAT(error_of([] { codec_of("topk:0.1:-1"); }), HasSubstr("-1 steps of warm-up"));
  for (const auto* text :
       {"", "top-k", "half:3", "int8:3", "int4", "topk:", "topk:x", "topk:0.1x", "none:1",
        "topk:0.1:", "topk:0.1:2.5", "topk:0.1:2:3", "threshold:0.1:2"}) {
    EXPECT_THAT(
        error_of([&] { codec_of(text); }),
        HasSubstr("there are none, half, bfloat16, int8, threshold[:0.05], topk[:0.05[:steps of "))
        << text;
  }
  for (const auto* text : {"topk:0", "topk:-0.1", "topk:1.01", "topk:nan"}) {
    EXPECT_THAT(error_of([&] { codec_of(text); }), HasSubstr("must be in (0, 1]")) << text;
  }
  for (const auto* text : {"threshold:-1", "threshold:inf", "threshold:nan", "threshold:1e39"}) {
    EXPECT_THAT(error_of([&] { codec_of(text); }), HasSubstr("must be not negative")) << text;
  }
}

// promise: codec.h#name_of
TEST(Codec, TransportsHaveNames) {
  EXPECT_EQ(name_of(MessageFormat::by_size), "by size");
  EXPECT_EQ(name_of(MessageFormat::sparse), "sparse");
  EXPECT_EQ(name_of(MessageFormat::dense), "dense");
}

// promise: codec.h#momentum_correction, codec.h#text_of, codec.h#validate
TEST(Codec, ACompressionThatMakesNoSenseIsRefused) {
  EXPECT_THAT(error_of([] { validate({.fusion = 0}); }), HasSubstr("fusion 0"));
  EXPECT_THAT(error_of([] { validate({.clamp = -1}); }), HasSubstr("clamp -1"));
  const auto refused = [](Compression some, double momentum = 0.9, double weight_decay = 0) {
    some.momentum_correction = {.momentum = momentum, .weight_decay = weight_decay};
    return error_of([&] { validate(some); });
  };
  EXPECT_EQ(refused({.codec = top_k_codec()}), "");
  EXPECT_EQ(refused({.codec = threshold_codec()}), "");
  EXPECT_THAT(refused({}), HasSubstr("needs a codec that selects values"));
  EXPECT_THAT(refused({.codec = half_codec()}), HasSubstr("needs a codec that selects values"));
  EXPECT_THAT(refused({.codec = int8_codec()}), HasSubstr("needs a codec that selects values"));
  EXPECT_THAT(refused({.codec = top_k_codec(), .error_feedback = false}),
              HasSubstr("needs error feedback"));
  EXPECT_THAT(refused({.codec = top_k_codec()}, 1), HasSubstr("momentum correction 1: must be"));
  EXPECT_THAT(refused({.codec = top_k_codec()}, NAN), HasSubstr("momentum correction nan: must"));
  EXPECT_THAT(refused({.codec = top_k_codec()}, 0.9, -1), HasSubstr("weight decay -1: must be"));
  EXPECT_EQ(tutti::text_of(Compression{}), "none");
  EXPECT_EQ(tutti::text_of({.codec = top_k_codec()}),
            "topk:0.05, error feedback on, per group, fusion 2097152, clamp 0");
}

}  // namespace
}  // namespace tutti::test
