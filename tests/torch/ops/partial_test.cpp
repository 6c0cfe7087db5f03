// Partial values: what they come to, what they cost, and what does not compile.

#include "tutti/partial.h"

#include <cmath>
#include <limits>

#include "comm/group_state.h"
#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::partial_cases {
namespace {

using ::testing::HasSubstr;
using Sum = Partial<Whole::sum>;
using Max = Partial<Whole::max>;

template <class One, class Other>
concept Addable = requires(One one, Other other) {
  std::move(one) + std::move(other);
};
template <class One, class Other>
concept Multipliable = requires(One one, Other other) {
  std::move(one) * std::move(other);
};
template <class One>
concept ReducibleInPlace = requires(One& one) {
  one.reduce();
};
template <class One>
concept Scatterable = requires(One one) {
  std::move(one).reduce_scatter();
};

// A tensor is the same on all, or this worker's own: neither may be added to a part of a sum.
static_assert(Addable<Sum, Sum>);
static_assert(!Addable<Sum, torch::Tensor>);
static_assert(!Addable<torch::Tensor, Sum>);
static_assert(!Addable<Sum, double>);
static_assert(!Addable<Max, Max>, "the sum of two maxima is not the maximum of a sum");
static_assert(!Addable<Partial<Whole::mean>, Partial<Whole::mean>>);
static_assert(Multipliable<Sum, double> && Multipliable<double, Sum>);
static_assert(!Multipliable<Sum, torch::Tensor> && !Multipliable<Sum, Sum>);
static_assert(!Multipliable<Max, double>, "a negative factor makes it a minimum");
static_assert(!std::is_convertible_v<Sum, torch::Tensor>, "it cannot reach an optimizer");
static_assert(!std::is_convertible_v<torch::Tensor, Sum>);
static_assert(!std::is_copy_constructible_v<Sum>, "it would be reduced twice");
static_assert(!ReducibleInPlace<Sum>, "only what is moved is used up");
static_assert(Scatterable<Sum> && !Scatterable<Max>);

// promise: partial.h#Whole, partial.h#combine, partial.h#reduce
TEST(Partial, EveryWholeIsThatOfAllParts) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    const double rank = job.rank();
    const auto of = [](std::vector<double> values) {
      return here(torch::tensor(values, torch::kFloat64));
    };
    const auto flags = [](bool one, bool other) { return here(torch::tensor({one, other})); };
    EXPECT_TRUE(torch::equal(Sum(group, of({rank, 1})).reduce(), of({3, 3})));
    EXPECT_TRUE(torch::equal(
        combine(Max(group, of({rank, -rank})), Max(group, of({1.5, -7}))).reduce(), of({2, 0})));
    EXPECT_TRUE(torch::equal(combine(Partial<Whole::min>(group, of({rank})),
                                     Partial<Whole::min>(group, of({0.5 - rank})))
                                 .reduce(),
                             of({-1.5})));
    EXPECT_TRUE(torch::equal(combine(Partial<Whole::product>(group, of({rank + 1})),
                                     Partial<Whole::product>(group, of({2})))
                                 .reduce(),
                             of({48})));
    EXPECT_TRUE(torch::equal(combine(Partial<Whole::all>(group, flags(true, rank != 1)),
                                     Partial<Whole::all>(group, flags(true, true)))
                                 .reduce(),
                             flags(true, false)));
    EXPECT_TRUE(torch::equal(combine(Partial<Whole::any>(group, flags(false, rank == 1)),
                                     Partial<Whole::any>(group, flags(false, false)))
                                 .reduce(),
                             flags(false, true)));
    EXPECT_TRUE(torch::equal(
        combine(Partial<Whole::concat>(group, of({rank})),
                Partial<Whole::concat>(group, torch::full({job.rank()}, 9.0, torch::kFloat64)))
            .reduce(),
        of({0, 1, 9, 2, 9, 9})));
    // Rank r has r + 1 samples of mean r, and one of 6.
    const auto mean =
        combine(partial_mean(group, of({rank}), rank + 1), partial_mean(group, of({6}), 1))
            .reduce();
    EXPECT_TRUE(torch::allclose(mean, of({(0.0 * 1 + 1 * 2 + 2 * 3 + 3 * 6) / 9})));
  });
}

// promise: partial.h#Partial, partial.h#combine
TEST(Partial, SumsThatAreAddedFirstCostOneCall) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto x = torch::ones({3}, torch::kFloat64).requires_grad_();
    const auto before = group.state()->calls();
    auto loss = partial_sum(group, x.square().sum()) + 0.5 * partial_sum(group, x.sum()) * 2;
    loss = std::move(loss) + partial_sum(group, x.sum() * job.rank());
    EXPECT_EQ(group.state()->calls(), before);
    const auto all = std::move(loss).reduce();
    EXPECT_EQ(group.state()->calls(), before + 1);
    EXPECT_EQ(all.item<double>(), 2 * (3 + 3) + 3);
    (all / 2).backward();  // all have the same loss
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 3.0 + job.rank(), torch::kFloat64)));
  });
}

// promise: partial.h#Partial
TEST(Partial, AWeightedMeanHasItsGradientInOneCall) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto x = torch::full({2}, 1.0 + job.rank(), torch::kFloat64).requires_grad_();
    const double weight = job.rank() == 0 ? 3 : 1;
    const auto before = group.state()->calls();
    const auto mean = partial_mean(group, x, weight).reduce();
    EXPECT_EQ(group.state()->calls(), before + 1);
    EXPECT_TRUE(torch::equal(mean, torch::full({2}, 1.25, torch::kFloat64)));
    (mean.sum() / 2).backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, weight / 4, torch::kFloat64)));
  });
}

/// A worker that has no samples comes with the mean of none.
// promise: partial.h#Partial
TEST(Partial, AValueOfWeightZeroCountsNothingWhateverItIs) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    const auto of = [](double value) {
      return torch::full({2}, value, torch::kFloat64).requires_grad_();
    };
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 5.0}) {
      const double weight = job.rank() == 1 ? 0 : 1 + job.rank();
      const auto x = of(weight == 0 ? bad : 1.0 + job.rank());
      const auto none = of(bad);
      const auto mean =
          combine(partial_mean(group, x, weight), partial_mean(group, none, 0)).reduce();
      EXPECT_TRUE(torch::equal(mean, of((1.0 * 1 + 3.0 * 3) / 4))) << mean;
      (mean.sum() / 3).backward();  // all have the same loss
      EXPECT_TRUE(torch::equal(x.grad(), of(weight / 4))) << x.grad();
      EXPECT_TRUE(torch::equal(none.grad(), of(0))) << none.grad();
    }
    EXPECT_TRUE(partial_mean(group, torch::ones({}), 0).reduce().isnan().item<bool>());
  });
}

// promise: partial.h#reduce_scatter
TEST(Partial, APieceIsThisWorkersRowsOfTheSum) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto x = torch::arange(6).to(torch::kFloat32).reshape({3, 2});
    const std::vector<std::int64_t> rows = {1, 2};
    const auto mine = (partial_sum(group, x) + partial_sum(group, x)).reduce_scatter(rows);
    EXPECT_TRUE(torch::equal(mine, 4 * (job.rank() == 0 ? x.slice(0, 0, 1) : x.slice(0, 1, 3))));
  });
}

// promise: partial.h#Partial, partial.h#merge
TEST(Partial, OfTwoGroupsOrOfNothingIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group one(job, "one");
    const Group two(job, "two");
    const auto x = torch::ones({2});
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { (partial_sum(one, x) + partial_sum(two, x)).reduce(); }),
        HasSubstr("partial values of two groups, \"one\" and \"two\""));
    EXPECT_THAT(text_of<InvalidArgument>([&] { partial_sum(one, {}).reduce(); }),
                HasSubstr("has no tensor"));
    auto used = partial_sum(one, x);
    static_cast<void>(std::move(used).reduce());
    EXPECT_THAT(text_of<InvalidArgument>([&] { static_cast<void>(std::move(used).reduce()); }),
                HasSubstr("a partial value that is reduced has no tensor"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { Partial<Whole::all>(one, x).reduce(); }),
                HasSubstr("must be of booleans"));
  });
}

/// What a program without NDEBUG does.
class OfADebugBuild : public PartialValue {
 public:
  explicit OfADebugBuild(const Group& group) : PartialValue(group, Whole::sum, torch::ones({2})) {}
  ~OfADebugBuild() { require_reduced(true); }
};

// promise: partial.h#Partial
TEST(Partial, DestroyedWithoutAReductionEndsADebugBuild) {
  on_workers(1, [](const Job& job) {
    const Group group(job, "stages");
    EXPECT_DEATH(OfADebugBuild{group},
                 "tutti: a partial value of group \"stages\" is destroyed without a reduction");
  });
}

#ifdef NDEBUG
// promise: partial.h#Partial
TEST(Partial, DestroyedWithoutAReductionIsSaid) {
  on_workers(1, [](const Job& job) {
    const Group group(job, "stages");
    const LogCapture log;
    {
      const auto forgotten = partial_sum(group, torch::ones({2}));
      static_cast<void>(forgotten);
    }
    EXPECT_EQ(log.count("a partial value of group \"stages\" is destroyed without a reduction"), 1);
    EXPECT_THROW(
        {
          const auto lost = partial_sum(group, torch::ones({2}));
          throw std::runtime_error("something else");
        },
        std::runtime_error);
    static_cast<void>(partial_sum(group, torch::ones({2})).reduce());
    EXPECT_EQ(log.count("is destroyed without a reduction"), 1) << "an exception says enough";
  });
}
#endif

// promise: partial.h#combine
TEST(Partial, IsScaledDividedAndAddedTo) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto sum = partial_sum(group, torch::full({2}, 3.0)) / 3;
    sum += 2 * partial_sum(group, torch::ones({2}));
    EXPECT_TRUE(std::move(sum).reduce().equal(torch::full({2}, 6.0)));
    EXPECT_TRUE((partial_mean(group, torch::full({2}, 1.0 + job.rank()), 1) * 4 / 2)
                    .reduce()
                    .equal(torch::full({2}, 3.0)));
  });
}

// promise: partial.h#Partial
TEST(Partial, AMeanOfIntegersOrBooleansIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    for (const auto type : {torch::kBool, torch::kInt64, torch::kUInt8}) {
      EXPECT_THAT(
          text_of<InvalidArgument>([&] { (void)partial_mean(group, torch::ones({2}, type), 2.5); }),
          HasSubstr("the tensor must be of a floating type, as for torch::mean"));
    }
    EXPECT_THAT(
        text_of<Unsupported>([&] { (void)partial_mean(group, torch::ones({2}).to_sparse(), 1); }),
        HasSubstr("sparse"));
  });
}

/// 16 bits have no room for such weights and sums.
// promise: partial.h#Partial
TEST(Partial, AMeanOfANarrowTypeHasAllWeightsItsTypeAndItsGradient) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    for (const auto type : {torch::kFloat16, torch::kBFloat16}) {
      const double weight = job.rank() == 0 ? 40'000 : 257;
      auto x = torch::full({3}, 2.0 + job.rank(), type).requires_grad_();
      auto mean = combine(partial_mean(group, x, weight), partial_mean(group, x * 0, 3)).reduce();
      EXPECT_EQ(mean.scalar_type(), type);
      const double all = 40'000 + 257 + 6;
      EXPECT_TRUE(torch::equal(mean, torch::full({3}, (2.0 * 40'000 + 3.0 * 257) / all).to(type)));
      (mean.to(torch::kFloat32) * 100).sum().backward();
      const auto wanted = torch::full({3}, 2 * 100 * weight / all);
      EXPECT_EQ(x.grad().scalar_type(), type);
      EXPECT_TRUE(torch::allclose(x.grad().to(torch::kFloat32), wanted, 0.01)) << x.grad();
    }
  });
}

// promise: partial.h#Partial
TEST(Partial, AMeanOfTwoTypesHasTheWiderOne) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto mean = combine(partial_mean(group, torch::full({}, 1.0, torch::kFloat16), 1),
                        partial_mean(group, torch::full({}, 1e200, torch::kFloat64), 3))
                    .reduce();
    EXPECT_EQ(mean.scalar_type(), torch::kFloat64);
    EXPECT_DOUBLE_EQ(mean.item<double>(), 0.75e200);
  });
}

// promise: partial.h#Partial
TEST(Partial, AWeightThatFloat32CannotHoldIsRefusedUnlessTheMeanIsOfFloat64) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    for (const double weight : {1e39, 1e-46, 1e-39}) {
      for (const auto type : {torch::kFloat32, torch::kFloat16}) {
        EXPECT_THAT(text_of<InvalidArgument>(
                        [&] { (void)partial_mean(group, torch::ones({2}, type), weight); }),
                    HasSubstr("cannot be held in float32"));
      }
      const auto mean = partial_mean(group, torch::ones({2}, torch::kFloat64), weight).reduce();
      EXPECT_TRUE(torch::equal(mean, torch::ones({2}, torch::kFloat64))) << mean;
    }
    const auto heavy = [&] { return partial_mean(group, torch::zeros({2}), 3e38); };
    EXPECT_TRUE(heavy().reduce().equal(torch::zeros({2})));
    EXPECT_THAT(text_of<InvalidArgument>([&] { combine(heavy(), heavy()).reduce(); }),
                HasSubstr("cannot be held in float32"));
  });
}

// promise: partial.h#Partial
TEST(Partial, AWeightThatIsNoneIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT(
          text_of<InvalidArgument>([&] { (void)partial_mean(group, torch::ones({2}), weight); }),
          HasSubstr("a weight must be finite and not negative"));
    }
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { (void)partial_mean(group, torch::ones({2}, torch::kFloat64), 1e308); }),
                HasSubstr("a weight of 1e+308 is too large for sums in float64"));
  });
}

}  // namespace
}  // namespace tutti::test::partial_cases
