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

class Scale : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(Scale);

template <class T, class S>
void is_the_model() {
  using C = decltype(model::widen(S{}));
  for (const std::size_t size : {0, 1, 7, 8, 63, 64, 65, 1023, 1024, 1025, 4097}) {
    for (const std::size_t offset : {0, 1, 3, 15}) {
      for (const double weight : {1.0, 0.5, -3.7, 1e-3}) {
        SCOPED_TRACE(testing::Message() << size << " at " << offset << " times " << weight);
        const auto from = model::random_values<S>(size, size);
        const auto before = model::random_values<T>(size, size + 1);
        Placed<S> source(from, offset);
        Placed<T> scaled(before, offset);
        Placed<T> added(before, offset);
        const auto count = static_cast<std::int64_t>(size);
        scale_into(scaled.data(), model::DTypeOf<T>::value, source.data(), model::DTypeOf<S>::value,
                   count, weight);
        add_scaled(added.data(), model::DTypeOf<T>::value, source.data(), model::DTypeOf<S>::value,
                   count, weight);
        for (std::size_t i = 0; i < size; ++i) {
          const volatile C product = model::widen(from[i]) * static_cast<C>(weight);
          const C sum = static_cast<C>(model::widen(before[i])) + product;
          ASSERT_TRUE(model::same<T>(scaled.at(i), model::narrow<T>(static_cast<C>(product))));
          ASSERT_TRUE(model::same<T>(added.at(i), model::narrow<T>(sum)));
        }
        EXPECT_TRUE(scaled.guards_intact() && added.guards_intact() && source.guards_intact());
      }
    }
  }
}

// promise: numerics#divisor-and-weights, numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Scale, Float32) { is_the_model<float, float>(); }
TEST_P(Scale, Float64) { is_the_model<double, double>(); }
TEST_P(Scale, Float16) { is_the_model<Half, Half>(); }
TEST_P(Scale, BFloat16) { is_the_model<BFloat, BFloat>(); }
TEST_P(Scale, Float16ToFloat32) { is_the_model<float, Half>(); }
TEST_P(Scale, BFloat16ToFloat32) { is_the_model<float, BFloat>(); }

// promise: numerics#divisor-and-weights, numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(Scale, ProductIsRoundedBeforeTheAddition) {
  const auto from = model::random_values<float>(4096, 1);
  const auto before = model::random_values<float>(4096, 2);
  auto to = before;
  add_scaled(to.data(), DType::float32, from.data(), DType::float32, 4096, 1.0 / 3.0);
  int contracted_differs = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    contracted_differs += std::fma(from[i], 1.0F / 3.0F, before[i]) != to[i];
  }
  EXPECT_GT(contracted_differs, 0);
}

TEST_P(Scale, InPlace) {
  const auto from = model::random_values<float>(1001, 1);
  auto to = from;
  scale_into(to.data(), DType::float32, to.data(), DType::float32, 1001, 0.3);
  for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], from[i] * 0.3F);
}

// promise: numerics#divisor-and-weights
TEST(ScaleInto, WeightOneCopiesEveryType) {
  const std::vector<float> odd = {-0.0F, std::bit_cast<float>(0x7F800001U), NAN};
  std::vector<float> copy(3);
  scale_into(copy.data(), DType::float32, odd.data(), DType::float32, 3, 1.0);
  EXPECT_EQ(std::memcmp(copy.data(), odd.data(), 12), 0);
  const auto numbers = model::random_values<std::int64_t>(777, 1);
  std::vector<std::int64_t> same(777);
  scale_into(same.data(), DType::int64, numbers.data(), DType::int64, 777, 1.0);
  EXPECT_EQ(same, numbers);
}

TEST(ScaleInto, RefusesImpossibleCombinations) {
  float x[2] = {};
  EXPECT_THAT([&] { scale_into(x, DType::int32, x, DType::int32, 2, 2.0); },
              ThrowsMessage<InternalError>(HasSubstr("int32 scaled by 2")));
  EXPECT_THAT([&] { scale_into(x, DType::float16, x, DType::float32, 2, 1.0); },
              ThrowsMessage<InternalError>(HasSubstr("float32 scaled into float16")));
  EXPECT_THAT([&] { add_scaled(x, DType::uint8, x, DType::uint8, 2, 1.0); },
              ThrowsMessage<InternalError>(HasSubstr("weighted addition of uint8")));
  EXPECT_THAT([&] { add_scaled(x, DType::float32, x, DType::float32, -2, 1.0); },
              ThrowsMessage<InternalError>(HasSubstr("-2 elements")));
}

TEST_P(Scale, AllZeroSeesEveryByte) {
  for (const std::size_t size : {0, 1, 15, 16, 17, 31, 64, 65, 255, 256, 1000}) {
    for (const std::size_t offset : {0, 1, 7}) {
      Placed<std::uint8_t> bytes(std::vector<std::uint8_t>(size), offset);
      EXPECT_TRUE(all_zero(bytes.data(), size)) << "guards around it are not zero";
      for (std::size_t i = 0; i < size; ++i) {
        auto* const data = static_cast<std::uint8_t*>(bytes.data());
        data[i] = i % 2 ? 1 : 0x80;
        ASSERT_FALSE(all_zero(data, size)) << i << " of " << size;
        data[i] = 0;
      }
    }
  }
  const float negative_zero = -0.0F;
  EXPECT_FALSE(all_zero(&negative_zero, sizeof(float)));
}

}  // namespace
}  // namespace tutti
