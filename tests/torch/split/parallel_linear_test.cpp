// A linear layer that is split by classes, beside torch::nn::Linear on the joined batch.

#include "tutti/parallel_linear.h"

#include "comm/group_state.h"
#include "torch/split/whole.h"

namespace tutti::test::parallel_linear_cases {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t kFeatures = 5;

class ParallelLinearOf : public ::testing::TestWithParam<int> {
 protected:
  void on_all(const std::function<void(const Group&, std::int64_t classes)>& body) const {
    on_workers(GetParam(), [&](const Job& job) {
      const Group group(job);
      for (const std::int64_t classes : {1, 2, 7, 10}) body(group, classes);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, ParallelLinearOf, ::testing::ValuesIn(kNumbersOfWorkers));

ParallelLinearOptions options_of(std::int64_t classes, std::uint64_t seed = 5) {
  return {.features = kFeatures, .classes = classes, .seed = seed, .dtype = torch::kFloat64};
}

/// The whole as one process has it, with the initial values of one member.
torch::nn::Linear whole_of(const Group& group, const ParallelLinearOptions& options) {
  const ParallelLinear alone(group.split(group.rank(), "alone"), options);
  torch::nn::Linear whole(
      torch::nn::LinearOptions(options.features, options.classes).bias(options.bias));
  whole->to(options.dtype);
  const torch::NoGradGuard off;
  whole->weight.copy_(alone->weight);
  if (options.bias) whole->bias.copy_(alone->bias);
  return whole;
}

// promise: parallel_linear.h#ParallelLinearImpl, parallel_linear.h#ParallelLinearOptions
TEST_P(ParallelLinearOf, InitialValuesAreThoseOfOneMember) {
  on_workers(GetParam(), [](const Job& job) {
    const Group group(job);
    for (const std::int64_t classes : {1, 2, 7, 130, 200}) {
      const ParallelLinear mine(group, options_of(classes));
      auto whole = whole_of(group, options_of(classes));
      EXPECT_TRUE(torch::equal(mine->weight, part_of(whole->weight, group))) << classes;
      EXPECT_TRUE(torch::equal(mine->bias, part_of(whole->bias, group))) << classes;
      EXPECT_EQ(mine->first(), share_of(classes, group).first);
      const double bound = 1 / std::sqrt(static_cast<double>(kFeatures));
      EXPECT_LE(whole->weight.abs().max().item<double>(), bound);
      EXPECT_LE(whole->bias.abs().max().item<double>(), bound);
      if (classes < 100) continue;
      EXPECT_GE(whole->weight.abs().max().item<double>(), 0.95 * bound);
      EXPECT_NEAR(whole->weight.std().item<double>(), bound / std::sqrt(3.0), 0.05 * bound);
      EXPECT_EQ(std::get<0>(torch::_unique(whole->weight)).numel(), classes * kFeatures);
      EXPECT_FALSE(torch::equal(whole_of(group, options_of(classes, 6))->weight, whole->weight));
    }
  });
}

// promise: parallel_embedding.h#seed, parallel_linear.h#seed
TEST(ParallelLinearSeed, ComesFromTheGeneratorOfRank0AndAllDraw) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    torch::manual_seed(7 + static_cast<std::uint64_t>(job.rank()));
    const ParallelLinear mine(group, {.features = 3, .classes = 8});
    const auto next = torch::rand({1}).item<double>();
    torch::manual_seed(7 + static_cast<std::uint64_t>(job.rank()));
    torch::randint(std::numeric_limits<std::int64_t>::max(), {1}, torch::kInt64);
    EXPECT_EQ(next, torch::rand({1}).item<double>()) << "one draw on each member";
    torch::manual_seed(7);
    const ParallelLinear alone(group.split(group.rank(), "alone"), {.features = 3, .classes = 8});
    EXPECT_TRUE(torch::equal(mine->weight, part_of(alone->weight, group)));
  });
}

// promise: parallel_linear.h#ParallelLinear, parallel_linear.h#forward
TEST_P(ParallelLinearOf, OwnClassesOfAllSamplesTrainAsTheWhole) {
  on_all([](const Group& group, std::int64_t classes) {
    ParallelLinear mine(group, options_of(classes));
    auto whole = whole_of(group, options_of(classes));
    torch::optim::SGD optimizer(mine->parameters(), 0.1);
    torch::optim::SGD whole_optimizer(whole->parameters(), 0.1);
    const UnevenBatch batch(group);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto all = drawn(20 + step, {batch.total(), kFeatures});
      const auto weights = drawn(40 + step, {batch.total(), classes});
      const auto [first, last] = share_of(classes, group);
      auto x = batch.mine(all).clone().requires_grad_();
      optimizer.zero_grad();
      const auto logits = mine->forward(x);
      ops::backward(group, curved(logits, weights.slice(1, first, last)));
      optimizer.step();

      auto whole_x = all.clone().requires_grad_();
      whole_optimizer.zero_grad();
      const auto whole_logits = whole->forward(whole_x);
      curved(whole_logits, weights).backward();
      whole_optimizer.step();
      const auto what = fmt::format("{} classes, step {}", classes, step);
      expect_near(logits, whole_logits.slice(1, first, last), what);
      expect_near(x.grad(), batch.mine(whole_x.grad()), what);
      expect_near(mine->weight, part_of(whole->weight, group), what);
      expect_near(mine->bias, part_of(whole->bias, group), what);
    }
  });
}

// promise: parallel_linear.h#ParallelLinear, parallel_linear.h#logits, split_module.h#split_tensors
TEST_P(ParallelLinearOf, LogitsOfOwnSamplesTrainAsTheWhole) {
  on_all([](const Group& group, std::int64_t classes) {
    for (const bool has_bias : {true, false}) {
      auto options = options_of(classes);
      options.bias = has_bias;
      ParallelLinear mine(group, options);
      auto whole = whole_of(group, options);
      torch::optim::SGD optimizer(mine->parameters(), 0.1);
      torch::optim::SGD whole_optimizer(whole->parameters(), 0.1);
      const UnevenBatch batch(group);
      for (std::uint64_t step = 0; step < 3; ++step) {
        const auto all = drawn(20 + step, {batch.total(), kFeatures});
        const auto labels = drawn_labels(40 + step, classes, {batch.total()});
        auto x = batch.mine(all).clone().requires_grad_();
        optimizer.zero_grad();
        const auto logits = mine->logits(x);
        ops::backward(
            group, torch::cross_entropy_loss(logits, batch.mine(labels), {}, at::Reduction::Sum));
        optimizer.step();

        auto whole_x = all.clone().requires_grad_();
        whole_optimizer.zero_grad();
        const auto whole_logits = whole->forward(whole_x);
        torch::cross_entropy_loss(whole_logits, labels, {}, at::Reduction::Sum).backward();
        whole_optimizer.step();
        const auto what = fmt::format("{} classes, step {}", classes, step);
        expect_near(logits, batch.mine(whole_logits), what);
        expect_near(x.grad(), batch.mine(whole_x.grad()), what);
        expect_near(mine->weight, part_of(whole->weight, group), what);
        if (has_bias) expect_near(mine->bias, part_of(whole->bias, group), what);
        EXPECT_EQ(mine->split_tensors().size(), has_bias ? 2 : 1);
      }
    }
  });
}

TEST(ParallelLinear, WithoutGradientsItSendsOnlyForward) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    ParallelLinear mine(group, options_of(7));
    const torch::NoGradGuard off;
    const auto x = drawn(1 + static_cast<std::uint64_t>(job.rank()), {3, kFeatures});
    EXPECT_FALSE(mine->logits(x).requires_grad());
    const auto before = group.state()->calls();
    EXPECT_FALSE(mine->forward(x).requires_grad());
    EXPECT_EQ(group.state()->calls(), before + 2) << "numbers of samples, and samples";
  });
}

// promise: parallel_linear.h#ParallelLinearImpl
TEST(ParallelLinear, AnotherLayerOnAnotherMemberIsAMismatchThatNamesBoth) {
  const auto with = [](const ParallelLinearOptions& other) {
    return ends_of(2, [&](const Group& group) {
      const ParallelLinear layer(group, group.rank() == 0 ? options_of(10) : other);
    });
  };
  EXPECT_THAT(
      with(options_of(11)),
      Each("ParallelLinear: workers disagree about the layer: classes is 10 on rank 0, 11 on "
           "rank 1"));
  auto other = options_of(10);
  other.features = 6;
  EXPECT_THAT(with(other), Each(HasSubstr("features is 5 on rank 0, 6 on rank 1")));
  other = options_of(10);
  other.dtype = torch::kFloat32;
  EXPECT_THAT(with(other), Each(HasSubstr("dtype is Double on rank 0, Float on rank 1")));
  other = options_of(10);
  other.bias = false;
  EXPECT_THAT(with(other), Each(HasSubstr("bias is yes on rank 0, no on rank 1")));
  EXPECT_THAT(with(options_of(10, 6)), Each(HasSubstr("seed is 5 on rank 0, 6 on rank 1")));
}

TEST(ParallelLinear, ThatDoesNotFitIsRefusedOnAllWithTheFigures) {
  EXPECT_THAT(ends_of(2,
                      [](const Group& group) {
                        const ParallelLinear layer(group,
                                                   {.features = 64, .classes = 1'000'000'000'000});
                      }),
              Each(HasSubstr("ParallelLinear of 1000000000000 classes and 64 features needs ")));
}

// promise: parallel_linear.h#ParallelLinear
TEST(ParallelLinear, WhatCannotBeIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto refused = [&](const ParallelLinearOptions& options) {
      return text_of<InvalidArgument>([&] { const ParallelLinear layer(group, options); });
    };
    EXPECT_EQ(refused({.features = 3, .classes = 0}), "ParallelLinear: 3 features, 0 classes");
    EXPECT_EQ(refused({.features = -1, .classes = 2}), "ParallelLinear: -1 features, 2 classes");
    EXPECT_EQ(refused({.features = 3, .classes = 2, .dtype = torch::kInt64}),
              "ParallelLinear: parameters of type Long");
    ParallelLinear layer(group, {.features = 3, .classes = 2});
    for (const auto& x :
         {torch::ones({2, 4}), torch::ones({3}), torch::ones({2, 3}).to(at::kLong)}) {
      EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward(x); }),
                  HasSubstr("ParallelLinear takes Float [b, 3], not"));
      EXPECT_THAT(text_of<InvalidArgument>([&] { layer->logits(x); }),
                  HasSubstr("ParallelLinear takes Float [b, 3], not"));
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward({}); }), HasSubstr("not nothing"));
  });
}

}  // namespace
}  // namespace tutti::test::parallel_linear_cases
