#include "kernels/fold.h"

#include <gmock/gmock.h>

#include "base/check.h"
#include "every_target.h"
#include "fold_runner.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class FoldOn : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(FoldOn);

constexpr std::size_t kSizes[] = {0, 1, 7, 8, 63, 64, 65, 1023, 1024, 1025, 4097, 100003};
constexpr std::size_t kCounts[] = {1, 2, 3, 5, 7, 8, 9, 16, 33, 64};

// promise: numerics#one-tree
TEST_P(FoldOn, EverySizeAndSourceCountIsTheScalarTree) {
  for (const std::size_t n : kCounts) {
    for (const std::size_t size : kSizes) {
      SCOPED_TRACE(testing::Message() << n << " sources of " << size);
      const auto sources = random_sources<float>(n, size, n + size);
      const auto expected = Placed<float>(modelled<float, float>(sources, {}), 0).bytes();
      EXPECT_EQ((folded<float, float>(sources, {})), expected);
      EXPECT_EQ((folded<float, float>(sources, {.in_place = true})), expected);
    }
  }
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(FoldOn, PositionAndNeighboursDoNotShow) {
  for (const std::size_t n : {2, 3, 5, 8}) {
    const auto sources = random_sources<float>(n, 1025, n);
    const Recipe mean{.reduction = Reduction::mean, .divisor = 3.0};
    const auto expected = folded<float, float>(sources, mean);
    for (std::size_t offset = 0; offset < 16; ++offset) {
      Recipe moved = mean;
      moved.offset = offset;
      EXPECT_EQ((folded<float, float>(sources, moved)), expected) << "offset " << offset;
      moved.in_place = true;
      EXPECT_EQ((folded<float, float>(sources, moved)), expected) << "offset " << offset;
    }
    // An element in the tail of a short run is the element in the body of a long one.
    for (std::size_t size = 0; size < 80; ++size) {
      auto shorter = sources;
      for (auto& values : shorter) values.resize(size);
      const auto bytes = folded<float, float>(shorter, mean);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin())) << "size " << size;
    }
  }
}

TEST_P(FoldOn, ManyDestinations) {
  for (const std::size_t n : {1, 2, 5, 8, 64}) {
    const auto sources = random_sources<float>(n, 1037, n);
    const auto expected = modelled<float, float>(sources, {});
    for (const std::size_t fan_out : {1, 2, 3, 8, 64}) {
      expect_same(folded<float, float>(sources, {.fan_out = fan_out}), expected);
    }
  }
}

TEST_P(FoldOn, OneOfTheSourcesIsTheDestination) {
  for (const std::size_t n : {1, 2, 3, 5, 8, 33}) {
    const auto values = random_sources<float>(n, 4097, n);
    const auto expected = modelled<float, float>(values, {});
    const FoldProgram program = FoldProgram::canonical(static_cast<int>(n));
    for (std::size_t target = 0; target < n; ++target) {
      auto sources = values;
      std::vector<const void*> from;
      for (const auto& source : sources) from.push_back(source.data());
      std::vector<float> other(4097);
      void* to[] = {sources[target].data(), other.data()};
      fold({.program = &program, .sources = from, .destinations = to, .count = 4097});
      for (std::size_t k = 0; k < n; ++k) {
        EXPECT_EQ(
            std::memcmp(sources[k].data(), (k == target ? expected : values[k]).data(), 4097 * 4),
            0);
      }
      EXPECT_EQ(std::memcmp(other.data(), expected.data(), 4097 * 4), 0);
    }
  }
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST_P(FoldOn, ProgramsWithAbsentBlocks) {
  std::mt19937_64 random(5);
  for (int repeat = 0; repeat < 60; ++repeat) {
    std::vector<Block> blocks;
    for (int i = 0; i < 40; ++i) {
      if (random() % 3 != 0) blocks.push_back({i, 1});
    }
    if (blocks.empty()) continue;
    const auto sources =
        random_sources<float>(blocks.size(), 131, static_cast<std::uint64_t>(repeat));
    // Independent: absent leaves are removed while the tree is walked.
    const auto node = [&](auto&& self, std::int64_t begin, std::int64_t n,
                          std::size_t i) -> std::pair<bool, float> {
      if (n == 1) {
        for (std::size_t k = 0; k < blocks.size(); ++k) {
          if (blocks[k].begin == begin) return {true, sources[k][i]};
        }
        return {false, 0.0F};
      }
      std::int64_t left = 1;
      while (2 * left < n) left *= 2;
      const auto a = self(self, begin, left, i);
      const auto b = self(self, begin + left, n - left, i);
      if (a.first && b.first) return {true, a.second + b.second};
      return a.first ? a : b;
    };
    std::vector<float> expected;
    for (std::size_t i = 0; i < 131; ++i) expected.push_back(node(node, 0, 40, i).second);
    expect_same(folded<float, float>(sources, {}, FoldProgram::of_blocks(blocks, 40)), expected);
  }
}

TEST_P(FoldOn, DeepestProgramFitsItsStack) {
  std::vector<Block> blocks;
  std::int64_t begin = 0;
  for (int bit = 61; bit >= 0; --bit) {
    blocks.push_back({begin, std::int64_t{1} << bit});
    begin += std::int64_t{1} << bit;
  }
  const FoldProgram program = FoldProgram::of_blocks(blocks, begin);
  const auto sources = random_sources<model::BFloat>(blocks.size(), 5000, 1);
  std::vector<model::BFloat> expected;
  for (std::size_t i = 0; i < 5000; ++i) {
    float value = model::widen(sources.back()[i]);
    for (std::size_t k = blocks.size() - 1; k-- > 0;) value = model::widen(sources[k][i]) + value;
    expected.push_back(model::narrow<model::BFloat>(value));
  }
  expect_same(folded<model::BFloat, model::BFloat>(sources, {}, program), expected);
}

// Without this the tests above could not tell the tree from any other order.
TEST_P(FoldOn, AdditionFromTheLeftHasOtherBits) {
  for (const std::size_t n : {4, 5, 8, 16}) {
    const auto sources = random_sources<float>(n, 4096, n);
    std::vector<float> left = sources[0];
    for (std::size_t k = 1; k < n; ++k) {
      for (std::size_t i = 0; i < left.size(); ++i) left[i] += sources[k][i];
    }
    EXPECT_NE((folded<float, float>(sources, {})), (Placed<float>(left, 0).bytes()));
  }
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST_P(FoldOn, OneSourceIsCopiedBitForBit) {
  const std::vector<float> odd = {-0.0F,
                                  0.0F,
                                  0x1p-149F,
                                  NAN,
                                  -NAN,
                                  INFINITY,
                                  std::bit_cast<float>(0x7F800001U),
                                  std::bit_cast<float>(0xFF812345U)};
  EXPECT_EQ((folded<float, float>({odd}, {.fan_out = 3})), (Placed<float>(odd, 0).bytes()));
  std::vector<model::Half> halves(65536);
  std::vector<model::BFloat> bfloats(65536);
  for (unsigned i = 0; i < 65536; ++i) {
    halves[i].bits = bfloats[i].bits = static_cast<std::uint16_t>(i);
  }
  EXPECT_EQ((folded<model::Half, model::Half>({halves}, {})),
            Placed<model::Half>(halves, 0).bytes());
  EXPECT_EQ((folded<model::BFloat, model::BFloat>({bfloats}, {})),
            Placed<model::BFloat>(bfloats, 0).bytes());
}

// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST_P(FoldOn, NegativeZeroIsTheNeutralFiller) {
  const std::vector<std::vector<float>> sources = {{-0.0F, 0.0F, -0.0F, 5.0F},
                                                   {-0.0F, -0.0F, 0.0F, -0.0F}};
  expect_same(folded<float, float>(sources, {}), std::vector<float>{-0.0F, 0.0F, 0.0F, 5.0F});
}

TEST(Fold, RefusesImpossibleCombinations) {
  float x[4] = {};
  const void* const from[] = {x, x};
  void* const to[] = {x};
  const FoldProgram two = FoldProgram::canonical(2);
  const FoldProgram three = FoldProgram::canonical(3);
  const auto with = [&](auto change) {
    return [=, &two, &from, &to] {
      Fold work{.program = &two, .sources = from, .destinations = to, .count = 4};
      change(work);
      fold(work);
    };
  };
  const auto refused = [](auto call, const char* text) {
    EXPECT_THAT(call, ThrowsMessage<InternalError>(HasSubstr(text)));
  };
  refused(with([](Fold& w) { w.program = nullptr; }), "without a program");
  refused(with([&](Fold& w) { w.program = &three; }), "a program over 3 sources was given 2");
  refused(with([](Fold& w) { w.count = -1; }), "fold of -1 elements");
  refused(with([](Fold& w) { w.reduction = Reduction::logical_and; }), "logical_and of float32");
  refused(with([](Fold& w) { w.result_type = DType::float64; }), "fold of float32 to float64");
  refused(with([](Fold& w) { w.source_type = DType::float16; }), "fold of float16 to float32");
  refused(with([](Fold& w) {
            w.source_type = w.result_type = DType::int32;
            w.divisor = 2.0;
          }),
          "division of int32 by 2");
  const std::vector<const void*> crowd(65, x);
  const FoldProgram of_crowd = FoldProgram::canonical(65);
  refused(with([&](Fold& w) {
            w.program = &of_crowd;
            w.sources = crowd;
          }),
          "fold of 65 sources");
}

}  // namespace
}  // namespace tutti
