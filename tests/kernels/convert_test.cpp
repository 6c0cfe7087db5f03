// Every half and bfloat16, and the floats around every one of them, through the kernels' own loads
// and stores. Highway's conversions would fail here: some of them truncate.

#include <gtest/gtest.h>

#include "every_target.h"
#include "kernels/fold.h"
#include "scalar_model.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;

class Convert : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Convert);

template <class R>
std::vector<R> rounded_by_fold(const std::vector<float>& from) {
  std::vector<R> to(from.size());
  const FoldProgram program = FoldProgram::canonical(1);
  const void* const source = from.data();
  void* const destination = to.data();
  fold({.program = &program,
        .source_type = DType::float32,
        .result_type = model::DTypeOf<R>::value,
        .sources = {&source, 1},
        .destinations = {&destination, 1},
        .count = static_cast<std::int64_t>(from.size())});
  return to;
}

template <class S>
void widens_every_value() {
  std::vector<S> from(65536);
  for (unsigned bits = 0; bits < from.size(); ++bits)
    from[bits].bits = static_cast<std::uint16_t>(bits);
  std::vector<float> to(from.size());
  scale_into(to.data(), DType::float32, from.data(), model::DTypeOf<S>::value,
             static_cast<std::int64_t>(from.size()), 1.0);
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_TRUE(model::same(to[i], model::widen(from[i]))) << "bits " << i;
    ASSERT_EQ(std::signbit(to[i]), i >= 0x8000) << "bits " << i;
  }
  const std::vector<S> back = rounded_by_fold<S>(to);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isnan(to[i])) {
      ASSERT_TRUE(std::isnan(model::widen(back[i])));
    } else {
      ASSERT_EQ(back[i].bits, i);
    }
  }
}

TEST_P(Convert, WidensEveryHalf) { widens_every_value<Half>(); }
TEST_P(Convert, WidensEveryBFloat) { widens_every_value<BFloat>(); }

template <class R>
void expect_rounded(const std::vector<float>& from) {
  const std::vector<R> to = rounded_by_fold<R>(from);
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(to[i].bits, model::narrow<R>(from[i]).bits)
        << std::hexfloat << from[i] << " at " << i;
  }
}

/// Every value of R, the middle to its neighbour, and the floats next to both.
template <class R>
std::vector<float> ties_and_their_neighbours() {
  std::vector<float> values;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const R here{static_cast<std::uint16_t>(bits)};
    const R next{static_cast<std::uint16_t>(bits + 1)};
    const float x = model::widen(here);
    const float middle = static_cast<float>((static_cast<double>(x) + model::widen(next)) / 2);
    for (const float center : {x, middle}) {
      values.insert(values.end(),
                    {center, std::nextafter(center, INFINITY), std::nextafter(center, -INFINITY)});
    }
  }
  return values;
}

// promise: numerics#16-bit-floats
TEST_P(Convert, RoundsTiesToEvenAroundEveryHalf) {
  expect_rounded<Half>(ties_and_their_neighbours<Half>());
}
// promise: numerics#16-bit-floats
TEST_P(Convert, RoundsTiesToEvenAroundEveryBFloat) {
  expect_rounded<BFloat>(ties_and_their_neighbours<BFloat>());
}

TEST_P(Convert, RoundsAnyBits) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint32_t bits = random();
    values.push_back(std::bit_cast<float>(bits));
    // Exponents in and around half's range are rare among random bits.
    values.push_back(std::bit_cast<float>((bits & 0x807FFFFFu) | ((100 + bits % 48) << 23)));
  }
  for (const float edge :
       {65504.f, 65519.996f, 65520.f, 65536.f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 3.3895314e38f,
        3.3961775e38f, 3.4028235e38f, 0x1p-149f, 0x1p-126f, 0.f, INFINITY, NAN,
        std::numeric_limits<float>::signaling_NaN()}) {
    values.insert(values.end(), {edge, -edge});
  }
  expect_rounded<Half>(values);
  expect_rounded<BFloat>(values);
}

}  // namespace
}  // namespace tutti
