#include "every_target.h"
#include "fold_runner.h"
#include "kernels/fold.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;

class FoldTypes : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(FoldTypes);

template <class S, class R>
void is_the_model(Reduction reduction) {
  for (const std::size_t n : {1, 2, 3, 4, 5, 8, 9, 33}) {
    for (const std::size_t size : {1, 5, 65, 1025, 5003}) {
      SCOPED_TRACE(testing::Message() << name_of(model::DTypeOf<S>::value) << " to "
                                      << name_of(model::DTypeOf<R>::value) << ", "
                                      << name_of(reduction) << " of " << n << " × " << size);
      const auto sources = random_sources<S>(n, size, n * size);
      const double divisor = reduction == Reduction::mean ? static_cast<double>(n) : 1.0;
      const Recipe recipe{.reduction = reduction, .divisor = divisor, .offset = n % 16};
      const auto expected = modelled<S, R>(sources, recipe);
      expect_same(folded<S, R>(sources, recipe), expected);
      if constexpr (std::is_same_v<S, R>) {
        Recipe in_place = recipe;
        in_place.in_place = true;
        expect_same(folded<S, R>(sources, in_place), expected);
      }
    }
  }
}

template <class S, class R = S>
void every_reduction_of_numbers() {
  for (const Reduction reduction :
       {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min, Reduction::product}) {
    if (is_defined(reduction, model::DTypeOf<R>::value)) is_the_model<S, R>(reduction);
  }
}

TEST_P(FoldTypes, Float32) { every_reduction_of_numbers<float>(); }
TEST_P(FoldTypes, Float64) { every_reduction_of_numbers<double>(); }
TEST_P(FoldTypes, Float16) { every_reduction_of_numbers<Half>(); }
TEST_P(FoldTypes, BFloat16) { every_reduction_of_numbers<BFloat>(); }
TEST_P(FoldTypes, Float32ToFloat16) { every_reduction_of_numbers<float, Half>(); }
TEST_P(FoldTypes, Float32ToBFloat16) { every_reduction_of_numbers<float, BFloat>(); }
// promise: numerics#other-types-and-values
TEST_P(FoldTypes, Int32) { every_reduction_of_numbers<std::int32_t>(); }
// promise: numerics#other-types-and-values
TEST_P(FoldTypes, Int64) { every_reduction_of_numbers<std::int64_t>(); }
// promise: numerics#other-types-and-values
TEST_P(FoldTypes, UInt8) { every_reduction_of_numbers<std::uint8_t>(); }
TEST_P(FoldTypes, Boolean) {
  is_the_model<bool, bool>(Reduction::logical_and);
  is_the_model<bool, bool>(Reduction::logical_or);
}

/// Zeros of both signs, infinities, one or two NaN: every pair meets.
template <class T>
void specials_are_the_model() {
  std::vector<T> specials;
  for (const float x :
       {0.0F, -0.0F, 1.0F, -1.0F, INFINITY, -INFINITY, NAN, 3e38F, -3e38F, 1e-40F}) {
    specials.push_back(model::narrow<T>(static_cast<decltype(model::widen(T{}))>(x)));
  }
  std::vector<std::vector<T>> sources(2);
  for (const T a : specials) {
    for (const T b : specials) {
      sources[0].push_back(a);
      sources[1].push_back(b);
    }
  }
  for (const Reduction reduction :
       {Reduction::sum, Reduction::max, Reduction::min, Reduction::product}) {
    SCOPED_TRACE(name_of(reduction));
    expect_same(folded<T, T>(sources, {.reduction = reduction}),
                modelled<T, T>(sources, {.reduction = reduction}));
  }
}

TEST_P(FoldTypes, NaNAndInfinityAndZerosOfBothSigns) {
  specials_are_the_model<float>();
  specials_are_the_model<double>();
  specials_are_the_model<Half>();
  specials_are_the_model<BFloat>();
}

// promise: numerics#other-types-and-values
TEST_P(FoldTypes, NaNReachesTheResultFromEveryLeaf) {
  for (const Reduction reduction :
       {Reduction::sum, Reduction::max, Reduction::min, Reduction::product}) {
    for (std::size_t n : {2, 3, 5, 8}) {
      for (std::size_t k = 0; k < n; ++k) {
        auto sources = random_sources<float>(n, 9, n);
        sources[k].assign(9, NAN);
        expect_same(folded<float, float>(sources, {.reduction = reduction}),
                    std::vector<float>(9, NAN));
      }
    }
  }
}

// Rounding between two additions loses what only their sum shows.
// promise: numerics#16-bit-floats
TEST_P(FoldTypes, SixteenBitsAreRoundedOnce) {
  const Half big = model::narrow<Half>(2048.0F);
  const Half one = model::narrow<Half>(1.0F);
  const std::vector<std::vector<Half>> sources = {{big}, {one}, {one}};
  expect_same(folded<Half, Half>(sources, {}), std::vector<Half>{model::narrow<Half>(2050.0F)});
  const Half rounded_between =
      model::narrow<Half>(model::widen(model::narrow<Half>(2049.0F)) + 1.0F);
  EXPECT_NE(rounded_between.bits, model::narrow<Half>(2050.0F).bits);
}

// promise: numerics#divisor-and-weights
TEST_P(FoldTypes, MeanIsDividedNotMultipliedByAReciprocal) {
  const auto sources = random_sources<float>(3, 4096, 11);
  const auto sum = modelled<float, float>(sources, {});
  std::vector<float> by_reciprocal;
  for (const float x : sum) by_reciprocal.push_back(x * (1.0F / 3.0F));
  const Recipe mean{.reduction = Reduction::mean, .divisor = 3.0};
  expect_same(folded<float, float>(sources, mean), modelled<float, float>(sources, mean));
  EXPECT_NE((folded<float, float>(sources, mean)), (Placed<float>(by_reciprocal, 0).bytes()));
}

template <class S, class R>
void targets_agree(Reduction reduction) {
  const auto sources = random_sources<S>(9, 3001, 4);
  std::vector<std::byte> first;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_STREQ(simd_target(), hwy::TargetName(target));
    const auto bytes = folded<S, R>(sources, {.reduction = reduction});
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << hwy::TargetName(target);
    hwy::SetSupportedTargetsForTest(0);
  }
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(FoldTargets, GiveTheSameBytes) {
  for (const Reduction reduction :
       {Reduction::sum, Reduction::max, Reduction::min, Reduction::product}) {
    targets_agree<float, float>(reduction);
    targets_agree<double, double>(reduction);
    targets_agree<Half, Half>(reduction);
    targets_agree<BFloat, BFloat>(reduction);
    targets_agree<float, BFloat>(reduction);
    targets_agree<std::int64_t, std::int64_t>(reduction);
  }
}

}  // namespace
}  // namespace tutti
