#include "kernels/select.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "every_target.h"
#include "fold_runner.h"
#include "kernels/select_sample.h"
#include "select_model.h"

namespace tutti {
namespace {

using select_model::distributions;
using select_model::Entries;
using select_model::entries_at;
using select_model::kDenormal;
using select_model::Model;
using select_model::model_at_least;
using select_model::model_largest;
using select_model::order_by;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// What a selection writes, between guards.
struct Output {
  explicit Output(std::size_t capacity)
      : indices(std::vector<std::uint32_t>(capacity), 3), values(std::vector<float>(capacity), 1) {}
  Entries first(std::size_t count) const {
    EXPECT_TRUE(indices.guards_intact() && values.guards_intact());
    Entries result;
    for (std::size_t i = 0; i < count; ++i) {
      result.indices.push_back(indices.at(i));
      result.bits.push_back(std::bit_cast<std::uint32_t>(values.at(i)));
    }
    return result;
  }
  std::uint32_t* to_indices() { return static_cast<std::uint32_t*>(indices.data()); }
  float* to_values() { return static_cast<float*>(values.data()); }

  Placed<std::uint32_t> indices;
  Placed<float> values;
};

class Select : public EveryTarget {
 protected:
  Entries largest(const std::vector<float>& values, std::size_t k, std::size_t offset = 0) {
    Placed<float> data(values, offset);
    Output output(k);
    const Selected selected = select_largest(
        static_cast<const float*>(data.data()), static_cast<std::int64_t>(values.size()),
        static_cast<std::int64_t>(k), output.to_indices(), output.to_values(), scratch_);
    EXPECT_EQ(selected.count, k);
    EXPECT_EQ(selected.first_nan, -1);
    return output.first(k);
  }

  /// What is written; `all` are to be counted.
  Entries at_least(const std::vector<float>& values, float threshold, std::size_t capacity,
                   std::size_t all) {
    Placed<float> data(values, 1);
    Output output(capacity);
    const Selected selected = select_at_least(
        static_cast<const float*>(data.data()), static_cast<std::int64_t>(values.size()), threshold,
        output.to_indices(), output.to_values(), static_cast<std::int64_t>(capacity));
    EXPECT_EQ(selected.count, all);
    EXPECT_EQ(selected.first_nan, -1);
    return output.first(std::min(all, capacity));
  }

  /// For all calls of a test: what one leaves behind does not show in the next.
  SelectScratch scratch_;
};
TUTTI_ON_EVERY_TARGET(Select);

std::vector<std::size_t> counts_around(std::size_t size) {
  std::vector<std::size_t> result;
  for (const std::size_t k : {std::size_t{1}, std::size_t{2}, size / 1000, size / 100, size / 17,
                              size / 16, size / 3, size - 1, size}) {
    if (k >= 1 && k <= size) result.push_back(k);
  }
  return result;
}

TEST_P(Select, LargestIsTheModel) {
  for (const std::size_t size : {1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 16384, 16385}) {
    for (const auto& [name, values] : distributions(size)) {
      const Model model(values);
      for (const std::size_t k : counts_around(size)) {
        SCOPED_TRACE(testing::Message() << k << " of " << size << ", " << name);
        ASSERT_EQ(largest(values, k, k % 16), model.largest(k));
      }
    }
  }
}

// One sweep where a sample helps; nothing but a share above 1/16 needs more.
TEST_P(Select, NoDistributionTakesASecondSweep) {
  for (const auto& [name, values] : distributions(100003)) {
    const Model model(values);
    for (const std::size_t k : {1, 17, 100, 1000, 6000, 20000}) {
      SCOPED_TRACE(testing::Message() << k << ", " << name);
      ASSERT_EQ(largest(values, k), model.largest(k));
      EXPECT_EQ(scratch_.sweeps(), k < 20000 ? 1 : 4);
    }
  }
}

// A sample that is not made to deceive does so for one array in ten thousand.
TEST_P(Select, SamplesOfRandomValuesHelp) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto values = model::random_values<float>(16384, seed);
    for (const std::size_t k : {10, 100, 1000}) {
      largest(values, k);
      EXPECT_EQ(scratch_.sweeps(), 1) << k << " of array " << seed;
    }
  }
}

TEST_P(Select, ASampleThatDeceivesCostsFiveSweeps) {
  const std::size_t count = 100003, k = 1000;
  const Sample sample(count, k);
  ASSERT_TRUE(sample.helps());
  for (const float sampled : {1e6F, 1e-9F}) {
    auto values = model::random_values<float>(count, 3);
    for (auto& x : values) x = 1 + std::fabs(x);
    for (std::size_t j = 0; j < sample.size(); ++j) {
      values[sample.position(j)] = sampled * (1 + static_cast<float>(j));
    }
    EXPECT_EQ(largest(values, k), model_largest(values, k));
    EXPECT_EQ(scratch_.sweeps(), 5) << sampled;
  }
}

TEST_P(Select, SamplesLieInTheirStrata) {
  for (const std::size_t count : {16384u, 100003u, 4294967295u}) {
    const Sample sample(count, 1);
    const std::size_t stride = count / sample.size();
    for (std::size_t j = 0; j < sample.size(); ++j) {
      ASSERT_EQ(sample.position(j) / stride, j);
      ASSERT_LT(sample.position(j), count);
    }
  }
}

TEST_P(Select, OfEqualMagnitudesTheLowerIndex) {
  std::vector<float> values(100, 0.25F);
  values[3] = values[40] = -0.5F;
  EXPECT_THAT(largest(values, 4).indices, testing::ElementsAre(0, 1, 3, 40));
  EXPECT_THAT(largest(std::vector<float>{-0.0F, 0, -0.0F, kDenormal}, 3).indices,
              testing::ElementsAre(0, 1, 3));
  // The last tie taken lies in the middle of a vector, far inside.
  std::vector<float> long_tie(100003, -1);
  for (std::size_t i = 0; i < 500; ++i) long_tie[i * 200 + 1] = 2;
  EXPECT_EQ(largest(long_tie, 1003), model_largest(long_tie, 1003));
}

// Ties to the higher index, and magnitudes that are cut to integers, must not pass what is above.
TEST(SelectControls, TheModelTellsDefectsApart) {
  const auto all = distributions(1000);
  auto reversed = all.at("five values");
  std::ranges::reverse(reversed);
  auto mirrored = model_largest(reversed, 300).indices;
  for (auto& i : mirrored) i = 999 - i;
  EXPECT_NE(entries_at(all.at("five values"), mirrored), model_largest(all.at("five values"), 300));
  const auto cut = [](float a, float b) {
    return static_cast<int>(std::fabs(a)) > static_cast<int>(std::fabs(b));
  };
  const auto& fractions = all.at("below one");
  const auto order = order_by(fractions, cut);
  EXPECT_NE(entries_at(fractions, {order.data(), 100}), model_largest(fractions, 100));
}

TEST_P(Select, AtLeastIsTheModel) {
  for (const std::size_t size : {1, 2, 63, 64, 65, 1000, 4095, 4096, 4097}) {
    for (const auto& [name, values] : distributions(size)) {
      for (const float threshold : {-0.0F, kDenormal, 0.3F, 2.5F, 3e38F}) {
        const Entries expected = model_at_least(values, threshold);
        const std::size_t all = expected.indices.size();
        SCOPED_TRACE(testing::Message() << threshold << " of " << size << ", " << name);
        ASSERT_EQ(at_least(values, threshold, size, all), expected);
        for (const std::size_t capacity : {std::size_t{0}, all / 2, all - (all > 0)}) {
          Entries first = expected;
          first.indices.resize(capacity);
          first.bits.resize(capacity);
          ASSERT_EQ(at_least(values, threshold, capacity, all), first) << capacity;
        }
      }
    }
  }
  EXPECT_THAT(at_least({}, 0, 0, 0).indices, testing::IsEmpty());
}

TEST_P(Select, TheThresholdIsIncluded) {
  const float t = 0.1F;
  const std::vector<float> values{t, std::nextafter(t, 0.0F), -t, std::nextafter(t, 1.0F)};
  EXPECT_THAT(at_least(values, t, 4, 3).indices, testing::ElementsAre(0, 2, 3));
}

TEST_P(Select, TheFirstNaNIsNamed) {
  const float smallest_nan = std::bit_cast<float>(0x7F800001u);
  const auto is_named = [&](const std::vector<float>& values, std::size_t at) {
    Output output(values.size());
    const auto n = static_cast<std::int64_t>(values.size());
    for (const std::size_t k : counts_around(values.size())) {
      EXPECT_EQ(select_largest(values.data(), n, static_cast<std::int64_t>(k), output.to_indices(),
                               output.to_values(), scratch_)
                    .first_nan,
                at)
          << k;
    }
    for (const auto& [threshold, capacity] : {std::pair{0.0F, n}, {3e38F, n / 2}, {1.0F, 0}}) {
      EXPECT_EQ(select_at_least(values.data(), n, threshold, output.to_indices(),
                                output.to_values(), capacity)
                    .first_nan,
                at)
          << threshold;
    }
  };
  for (const std::size_t size : {1, 65, 4097, 40000}) {
    for (const float fill : {0.0F, 1.0F, INFINITY}) {
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        SCOPED_TRACE(testing::Message() << at << " of " << size << " filled with " << fill);
        std::vector<float> values(size, fill);
        for (std::size_t i = at; i < size; i += 777) values[i] = NAN;
        values[at] = at % 2 == 0 ? smallest_nan : -smallest_nan;
        is_named(values, at);
      }
    }
  }
  is_named(std::vector<float>(40000, NAN), 0);
}

TEST(SelectChecks, RefuseWhatCannotBeSelected) {
  std::vector<float> values(8, 1);
  std::vector<std::uint32_t> indices(8);
  SelectScratch scratch;
  const auto of = [&](std::int64_t count, std::int64_t k) {
    return [&, count, k] {
      select_largest(values.data(), count, k, indices.data(), values.data(), scratch);
    };
  };
  const auto from = [&](std::int64_t count, float threshold, std::int64_t capacity) {
    return [&, count, threshold, capacity] {
      select_at_least(values.data(), count, threshold, indices.data(), values.data(), capacity);
    };
  };
  const auto refused = [](const char* text) {
    return ThrowsMessage<InternalError>(HasSubstr(text));
  };
  EXPECT_THAT(of(8, 0), refused("the 0 largest of 8 elements"));
  EXPECT_THAT(of(8, 9), refused("the 9 largest of 8 elements"));
  EXPECT_THAT(of(std::int64_t{1} << 32, 1), refused("among 4294967296 elements"));
  EXPECT_THAT(from(-1, 0, 8), refused("among -1 elements"));
  EXPECT_THAT(from(8, -1, 8), refused("magnitude -1"));
  EXPECT_THAT(from(8, INFINITY, 8), refused("magnitude inf"));
  EXPECT_THAT(from(8, NAN, 8), refused("magnitude nan"));
  EXPECT_THAT(from(8, 0, -1), refused("-1 elements at most"));
}

}  // namespace
}  // namespace tutti
