#include <gmock/gmock.h>

#include "base/check.h"
#include "every_target.h"
#include "fold_runner.h"
#include "kernels/fold.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Magnitude : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Magnitude);

template <class T>
double model_of(const std::vector<T>& values) {
  double largest = 0;
  for (const T value : values) {
    const double magnitude = std::abs(static_cast<double>(model::widen(value)));
    if (std::isnan(magnitude)) return NAN;
    largest = std::max(largest, magnitude);
  }
  return largest;
}

template <class T, class S>
void is_the_model() {
  using C = decltype(model::widen(S{}));
  const auto to_type = model::DTypeOf<T>::value;
  const auto from_type = model::DTypeOf<S>::value;
  for (const std::size_t size : {0, 1, 7, 63, 64, 65, 1025, 20000}) {
    for (const std::size_t offset : {0, 1, 15}) {
      for (const double weight : {1.0, -3.7}) {
        SCOPED_TRACE(testing::Message() << size << " at " << offset << " times " << weight);
        const auto from = model::random_values<S>(size, size);
        const auto before = model::random_values<T>(size, size + 1);
        Placed<S> source(from, offset);
        Placed<T> scaled(before, offset), added(before, offset);
        Placed<T> scaled_alone(before, offset), added_alone(before, offset);
        const auto n = static_cast<std::int64_t>(size);
        double of_scaled = -1;
        double of_added = -1;
        scale_into(scaled.data(), to_type, source.data(), from_type, n, weight, &of_scaled);
        add_scaled(added.data(), to_type, source.data(), from_type, n, weight, &of_added);
        scale_into(scaled_alone.data(), to_type, source.data(), from_type, n, weight);
        add_scaled(added_alone.data(), to_type, source.data(), from_type, n, weight);
        EXPECT_EQ(scaled.bytes(), scaled_alone.bytes());
        EXPECT_EQ(added.bytes(), added_alone.bytes());
        EXPECT_TRUE(scaled.guards_intact() && added.guards_intact());

        std::vector<T> written;
        std::vector<C> products;
        for (std::size_t i = 0; i < size; ++i) {
          written.push_back(scaled.at(i));
          products.push_back(model::widen(from[i]) * static_cast<C>(weight));
        }
        EXPECT_EQ(of_scaled, model_of(written));
        EXPECT_EQ(of_added, model_of(products));
        EXPECT_EQ(largest_magnitude(source.data(), from_type, n), model_of(from));
      }
    }
  }
}

TEST_P(Magnitude, Float32) { is_the_model<float, float>(); }
TEST_P(Magnitude, Float64) { is_the_model<double, double>(); }
TEST_P(Magnitude, Float16) { is_the_model<Half, Half>(); }
TEST_P(Magnitude, BFloat16) { is_the_model<BFloat, BFloat>(); }
TEST_P(Magnitude, Float16ToFloat32) { is_the_model<float, Half>(); }
TEST_P(Magnitude, BFloat16ToFloat32) { is_the_model<float, BFloat>(); }

/// One odd value anywhere among the largest finite ones.
template <class S>
void sees_every_element() {
  using C = decltype(model::widen(S{}));
  const auto type = model::DTypeOf<S>::value;
  constexpr std::size_t kSize = 131;
  for (const C odd : {C(NAN), -C(NAN), C(INFINITY), -C(INFINITY), C(-2)}) {
    for (std::size_t i = 0; i < kSize; ++i) {
      std::vector<S> values(kSize, model::narrow<S>(C(1)));
      values[i] = model::narrow<S>(odd);
      std::vector<S> to(kSize);
      double scaled = 0;
      double added = 0;
      double copied = 0;
      scale_into(to.data(), type, values.data(), type, kSize, 0.5, &scaled);
      add_scaled(to.data(), type, values.data(), type, kSize, 0.5, &added);
      scale_into(to.data(), type, values.data(), type, kSize, 1.0, &copied);
      const double here = largest_magnitude(values.data(), type, kSize);
      if (std::isnan(odd)) {
        ASSERT_TRUE(std::isnan(scaled) && std::isnan(added) && std::isnan(copied) &&
                    std::isnan(here));
      } else {
        ASSERT_EQ(here, std::abs(odd));
        ASSERT_EQ(copied, here);
        ASSERT_EQ(scaled, here / 2);
        ASSERT_EQ(added, here / 2);
      }
    }
  }
}

TEST_P(Magnitude, EveryElementOfFloat32) { sees_every_element<float>(); }
TEST_P(Magnitude, EveryElementOfFloat64) { sees_every_element<double>(); }
TEST_P(Magnitude, EveryElementOfFloat16) { sees_every_element<Half>(); }
TEST_P(Magnitude, EveryElementOfBFloat16) { sees_every_element<BFloat>(); }

TEST_P(Magnitude, NaNIsAboveInfinityWhicheverComesFirst) {
  for (const std::size_t distance : {1, 64, 5000}) {
    std::vector<float> values(distance + 1, 1);
    for (const bool nan_first : {true, false}) {
      values.front() = nan_first ? NAN : INFINITY;
      values.back() = nan_first ? INFINITY : NAN;
      const auto n = static_cast<std::int64_t>(values.size());
      double copied = 0;
      std::vector<float> to(values.size());
      scale_into(to.data(), DType::float32, values.data(), DType::float32, n, 1.0, &copied);
      EXPECT_TRUE(std::isnan(copied));
      EXPECT_TRUE(std::isnan(largest_magnitude(values.data(), DType::float32, n)));
    }
  }
}

// 40000 · 2 is finite before it is written.
// promise: numerics#16-bit-floats
TEST_P(Magnitude, WhatOverflowsWhenWrittenIsNotFinite) {
  const std::vector<Half> from(9, model::narrow<Half>(40000.0F));
  std::vector<Half> to(9);
  double largest = 0;
  scale_into(to.data(), DType::float16, from.data(), DType::float16, 9, 2.0, &largest);
  EXPECT_EQ(largest, INFINITY);
  add_scaled(to.data(), DType::float16, from.data(), DType::float16, 9, 2.0, &largest);
  EXPECT_EQ(largest, 80000);
}

TEST_P(Magnitude, OverflowOfTheProductIsNotFinite) {
  std::vector<float> x(9, 3e38F);
  double largest = 0;
  scale_into(x.data(), DType::float32, x.data(), DType::float32, 9, 2.0, &largest);
  EXPECT_EQ(largest, INFINITY);
}

TEST(MagnitudeChecks, RefuseIntegers) {
  std::int32_t x[2] = {};
  double largest = 0;
  EXPECT_THAT([&] { largest_magnitude(x, DType::int32, 2); },
              ThrowsMessage<InternalError>(HasSubstr("largest magnitude of int32")));
  EXPECT_THAT([&] { scale_into(x, DType::int32, x, DType::int32, 2, 1.0, &largest); },
              ThrowsMessage<InternalError>(HasSubstr("largest magnitude of int32")));
  EXPECT_THAT([&] { largest_magnitude(x, DType::float32, -1); },
              ThrowsMessage<InternalError>(HasSubstr("-1 elements")));
}

}  // namespace
}  // namespace tutti
