#include "kernels/fold_update.h"

#include <gmock/gmock.h>

#include "base/check.h"
#include "every_target.h"
#include "update_model.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;
using testing::HasSubstr;
using testing::ThrowsMessage;

class FoldUpdateOn : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(FoldUpdateOn);

std::vector<const void*> pointers(const auto& sources, std::size_t begin = 0) {
  std::vector<const void*> data;
  data.reserve(sources.size());
  for (const auto& source : sources) data.push_back(source.data() + begin);
  return data;
}

/// Folded to a gradient in memory, updated as a whole, then rounded: by the two other kernels.
template <class T>
void in_two_sweeps(State<T>& state, Fold fold_work, const PreparedUpdate& rule,
                   UpdateTarget target) {
  void* const gradient = state.gradient.data();
  fold_work.destinations = {&gradient, 1};
  fold(fold_work);
  target.gradient = gradient;
  update(rule, target);
}

constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 1023, 1024, 1025, 4095, 4097, 10007};

template <class T>
void is_fold_then_update() {
  const auto rules = model::all_rules();
  for (std::size_t r = 0; r < rules.size(); ++r) {
    for (const std::size_t n : {1, 2, 3, 5, 8}) {
      const std::size_t size = kSizes[(r + n) % std::size(kSizes)];
      const std::size_t offset = (r + n) % 3;
      const double divisor = n == 2 ? 1.0 : 3.0 * static_cast<double>(n % 2);
      SCOPED_TRACE(testing::Message() << "rule " << r << ", " << n << " sources of " << size);
      const auto sources = random_sources<T>(n, size, r + n);
      const auto data = pointers(sources);
      const FoldProgram program = FoldProgram::canonical(static_cast<int>(n));
      const Fold fold_work{.program = &program,
                           .source_type = model::DTypeOf<T>::value,
                           .result_type = model::DTypeOf<T>::value,
                           .divisor = divisor == 0 ? 1.0 : divisor,
                           .sources = data,
                           .count = static_cast<std::int64_t>(size)};
      State<T> two(size, offset, r);
      State<T> one(size, offset, r);
      UpdateTarget target = one.target();
      target.gradient = nullptr;
      UpdateTarget second = two.target();
      if (n == 3) target.gradient_scale = second.gradient_scale = 0.37;
      if (n == 5) target.clip_value = second.clip_value = 0.1;
      const auto rule = rules[r].prepared();
      in_two_sweeps(two, fold_work, rule, second);
      fold_update({.fold = fold_work, .target = target, .update = rule});
      one.expect_equal(two);
      EXPECT_TRUE(one.guards_intact());
      EXPECT_EQ(sources, random_sources<T>(n, size, r + n)) << "a source was written";
      EXPECT_EQ(one.gradient.bytes(), Placed<T>(one.values[0], 0).bytes());
    }
  }
}

TEST_P(FoldUpdateOn, Float32IsFoldThenUpdate) { is_fold_then_update<float>(); }
TEST_P(FoldUpdateOn, Float64IsFoldThenUpdate) { is_fold_then_update<double>(); }

TEST_P(FoldUpdateOn, EverySizeIsTheScalarModel) {
  const RuleCase rule{Adam{.lr = 0.01, .weight_decay = 0.1}, {.step = 3}};
  for (const std::size_t n : {1, 2, 5}) {
    const FoldProgram program = FoldProgram::canonical(static_cast<int>(n));
    for (const std::size_t size : kSizes) {
      const auto sources = random_sources<float>(n, size, n);
      const auto data = pointers(sources);
      State<float> state(size, 1, size);
      UpdateTarget target = state.target();
      target.gradient = nullptr;
      auto expected = state.values;
      if (size > 0) expected[0] = modelled<float, float>(sources, {.divisor = 3.0});
      expected = model::updated(rule, target, expected);
      fold_update({.fold = {.program = &program,
                            .divisor = 3.0,
                            .sources = data,
                            .count = static_cast<std::int64_t>(size)},
                   .target = target,
                   .update = rule.prepared()});
      state.expect(expected);
    }
  }
}

// A sixteen-bit parameter: what is kept between steps is the master copy.
template <class R>
void is_rounded_once() {
  const auto rule = define(Sgd{.lr = 0.1, .momentum = 0.9});
  const FoldProgram program = FoldProgram::canonical(3);
  for (const std::size_t size : kSizes) {
    State<float> state(size, 0, size);
    Placed<R> rounded(std::vector<R>(size), 1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto sources = random_sources<float>(3, size, step);
      const auto data = pointers(sources);
      UpdateTarget target = state.target();
      target.gradient = nullptr;
      fold_update({.fold = {.program = &program,
                            .divisor = 3.0,
                            .sources = data,
                            .count = static_cast<std::int64_t>(size)},
                   .target = target,
                   .update = rule.at({.step = 2}),
                   .rounded = rounded.data(),
                   .rounded_type = model::DTypeOf<R>::value});
      ASSERT_TRUE(rounded.guards_intact());
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(rounded.at(i).bits, model::narrow<R>(state.parameter.at(i)).bits) << i;
      }
    }
    if (size < 1000) continue;
    int finer = 0;
    for (std::size_t i = 0; i < size; ++i) {
      finer += model::widen(rounded.at(i)) != state.parameter.at(i);
    }
    EXPECT_GT(finer, 0) << "the master copy was rounded";
  }
}

TEST_P(FoldUpdateOn, HalfIsRoundedFromTheMasterCopy) { is_rounded_once<Half>(); }
TEST_P(FoldUpdateOn, BFloatIsRoundedFromTheMasterCopy) { is_rounded_once<BFloat>(); }

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST_P(FoldUpdateOn, CutAnywhereIsTheWhole) {
  constexpr std::size_t kSize = 9001;
  const auto sources = random_sources<float>(3, kSize, 1);
  const FoldProgram program = FoldProgram::canonical(3);
  State<float> whole(kSize, 0, 1);
  State<float> cut(kSize, 3, 1);
  const auto run = [&](State<float>& state, std::size_t begin, std::size_t count) {
    const auto data = pointers(sources, begin);
    UpdateTarget target = state.target(begin);
    target.gradient = nullptr;
    target.count = static_cast<std::int64_t>(count);
    fold_update({.fold = {.program = &program, .sources = data, .count = target.count},
                 .target = target,
                 .update = define(Adam{.lr = 0.01}).at({.step = 2})});
  };
  run(whole, 0, kSize);
  for (std::size_t begin = 0, length = 1; begin < kSize; begin += length, length = 2 * length + 1) {
    run(cut, begin, std::min(length, kSize - begin));
  }
  cut.expect_equal(whole);
}

TEST(FoldUpdateChecks, RefuseImpossibleCombinations) {
  State<float> state(4, 0, 1);
  const FoldProgram program = FoldProgram::canonical(2);
  const float g[4] = {1, 2, 3, 4};
  const void* const from[] = {g, g};
  void* const to[] = {state.gradient.data()};
  std::uint16_t narrow[4] = {};
  const auto refused = [&](auto change, const char* text) {
    FoldUpdate work{.fold = {.program = &program, .sources = from, .count = 4},
                    .target = state.target(),
                    .update = define(Adam{.lr = 1}).at({}),
                    .rounded = narrow};
    work.target.gradient = nullptr;
    change(work);
    EXPECT_THAT([&] { fold_update(work); }, ThrowsMessage<InternalError>(HasSubstr(text)));
  };
  refused([&](FoldUpdate& w) { w.fold.destinations = to; }, "1 destinations of the gradient");
  refused([&](FoldUpdate& w) { w.target.gradient = g; }, "a gradient beside the fold");
  refused([](FoldUpdate& w) { w.fold.count = 3; }, "fold of 3 and update of 4 elements");
  refused([](FoldUpdate& w) { w.target.dtype = DType::float64; },
          "fold of float32 to float32 and update of float64");
  refused([](FoldUpdate& w) { w.fold.result_type = DType::float16; },
          "fold of float32 to float16 and update of float32");
  refused([](FoldUpdate& w) { w.rounded_type = DType::float32; }, "float32 rounded to float32");
  refused([](FoldUpdate& w) { w.fold.program = nullptr; }, "without a program");
  refused([](FoldUpdate& w) { w.fold.sources = w.fold.sources.first(1); },
          "a program over 2 sources was given 1");
  refused([](FoldUpdate& w) { w.target.states[1] = nullptr; }, "without state 1 of 2");
  refused([](FoldUpdate& w) { w.fold.count = w.target.count = -1; }, "fold of -1 elements");
  EXPECT_EQ(state.parameter.bytes(), Placed<float>(state.values[1], 0).bytes());
}

}  // namespace
}  // namespace tutti
