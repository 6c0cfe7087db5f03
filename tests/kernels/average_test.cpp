#include "kernels/average.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/check.h"
#include "update_model.h"

namespace tutti {
namespace {

template <class T>
void is_the_formula_wherever_it_lies() {
  for (const std::size_t count : {0, 1, 7, 64, 1025}) {
    for (const std::size_t offset : {0, 1, 15}) {
      const auto averages = model::random_values<T>(count, 1);
      const auto values = model::random_values<T>(count, 2);
      Placed<T> average(averages, offset);
      Placed<T> value(values, offset / 3);
      move_average(average.data(), value.data(), model::DTypeOf<T>::value,
                   static_cast<std::int64_t>(count), 0.99);
      for (std::size_t i = 0; i < count; ++i) {
        const T old_part = static_cast<T>(0.99) * averages[i];
        const T new_part = static_cast<T>(1 - 0.99) * values[i];
        EXPECT_EQ(average.at(i), old_part + new_part) << i;
      }
      EXPECT_TRUE(average.guards_intact());
    }
  }
}

// promise: trainer_options.h#ema_decay
TEST(MoveAverage, Float32) { is_the_formula_wherever_it_lies<float>(); }
TEST(MoveAverage, Float64) { is_the_formula_wherever_it_lies<double>(); }

TEST(MoveAverage, RefusesOtherTypes) {
  EXPECT_THROW(move_average(nullptr, nullptr, DType::float16, 0, 0.5), InternalError);
}

}  // namespace
}  // namespace tutti
