// Options and groups that name parameters know all names of a tied one, and say so where they hold
// for none; errors name the model and what helps.

#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::parameter_names_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// One tensor under two names: "first" and "second".
struct Tied : torch::nn::Module {
  Tied() {
    first = register_parameter("first", torch::randn({5, 3}));
    register_parameter("second", first);
    other = register_parameter("other", torch::randn({3}));
  }
  torch::Tensor first, other;
};

bool is_second(const std::string& name) { return name == "second"; }

// promise: optimizer.h#rule_of
TEST(ParameterNames, ATiedParameterIsMeantByItsSecondNameToo) {
  on_workers(2, [](const Job& job) {
    const LogCapture log;
    torch::manual_seed(1);
    Tied model;
    const auto backward = [&] {
      model.zero_grad();
      const auto rows = torch::embedding(model.first, torch::tensor({job.rank(), 3}));
      (rows.square().sum() + (model.other * (job.rank() + 2)).sum()).backward();
    };
    {
      DataParallel parallel(job, model, {.per_replica = is_second});
      backward();
      EXPECT_EQ(parallel.touched(), std::vector<std::string>{"other"});
    }
    {
      DataParallel parallel(job, model, {.row_sparse = is_second});
      backward();
      EXPECT_TRUE(model.first.grad().is_sparse());
    }
    {
      DataParallel parallel(job, model, {.placement = [](const std::string& name) {
                              return is_second(name) ? std::optional<std::int64_t>(1)
                                                     : std::nullopt;
                            }});
      backward();
      EXPECT_EQ(model.first.grad().defined(), job.rank() == 1);
      parallel.broadcast_placed();
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  DataParallel parallel(job, model, {.placement = [](const std::string& name) {
                                          return std::optional<std::int64_t>(is_second(name));
                                        }});
                }),
                HasSubstr("\"first\" is also called \"second\", and has two owners: 0 and 1"));
    {
      const auto optimizer = Optimizer(Sgd{.lr = 0.5}).group(is_second, Sgd{.lr = 0});
      Trainer trainer(job, model, optimizer, {.shards = 2});
      const auto before = model.first.detach().clone();
      const auto other = model.other.detach().clone();
      trainer.step([&](Shard& shard) {
        return shard.loss(model.first.square().sum() + model.other.square().sum());
      });
      EXPECT_TRUE(torch::equal(model.first, before));
      EXPECT_FALSE(torch::equal(model.other, other));
    }
    EXPECT_EQ(log.count("holds for none"), 0);
  });
}

// promise: optimizer.h#unused_groups
TEST(ParameterNames, WhatHoldsForNoneIsLoggedByRank0) {
  on_workers(2, [](const Job& job) {
    const LogCapture log;
    torch::manual_seed(1);
    auto model = mlp();
    const auto no = [](const std::string&) { return false; };
    const auto nobody = [](const std::string&) { return std::optional<std::int64_t>(); };
    const int expected = job.rank() == 0 ? 1 : 0;
    {
      DataParallel parallel(
          job, *model, {.name = "net", .per_replica = no, .placement = nobody, .row_sparse = no});
      parallel.mean(0);
    }
    for (const auto* option : {"per_replica", "placement", "row_sparse"}) {
      EXPECT_EQ(log.count(std::string("\"net\": option ") + option + " holds for none"), expected);
    }
    const auto is_bias = [](const std::string& name) { return name.ends_with("bias"); };
    Trainer trainer(job, *model,
                    Optimizer(Sgd{.lr = 0.5})
                        .group(is_bias, Sgd{.lr = 0.1})
                        .group(is_bias, Sgd{.lr = 0.2})
                        .group(no, Sgd{.lr = 0.3}),
                    {.shards = 2, .name = "net", .row_sparse = no});
    EXPECT_EQ(log.count("\"net\": option row_sparse holds for none"), 2 * expected);
    EXPECT_EQ(log.count("group 1 of the optimizer"), 0);
    EXPECT_EQ(log.count("group 2 of the optimizer of \"net\" holds for none"), expected);
    EXPECT_EQ(log.count("group 3 of the optimizer of \"net\" holds for none"), expected);
  });
}

/// The generator's step goes through the discriminator, which the generator's optimizer does not
/// clear.
TEST(ParameterNames, AGradientThatIsStillHeldNamesTheModelAndWhatHelps) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    torch::nn::Sequential generator(torch::nn::Linear(2, 6));
    auto discriminator = mlp();
    DataParallel first(job, *generator, {.name = "generator"});
    DataParallel second(job, *discriminator, {.name = "discriminator"});
    const auto through = [&] {
      return discriminator->forward(generator->forward(torch::ones({1, 2}) + job.rank()))
          .square()
          .sum();
    };
    Batch(3, 1).loss(discriminator, 0, 3).backward();
    EXPECT_THAT(text_of<InvalidArgument>([&] { through().backward(); }),
                AllOf(HasSubstr("of \"discriminator\" still holds the reduced gradient of step 1"),
                      HasSubstr("zero_grad() of the model"), HasSubstr("requires_grad_(false)"),
                      HasSubstr("accumulate()")));
    first.fail("");
    second.fail("");
    discriminator->zero_grad();
    for (auto& p : discriminator->parameters()) p.requires_grad_(false);
    generator->zero_grad();
    through().backward();
    EXPECT_TRUE(generator->parameters()[0].grad().defined());
  });
}

TEST(ParameterNames, WhoEndsEarlyIsToldOfDrain) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    const Group group(job, "test");
    {
      DataParallel parallel(group, *model, {.name = "net"});
      for (int step = 1; step <= 2; ++step) {
        model->zero_grad();
        const auto backward = [&] { Batch(3, job.rank()).loss(model, 0, 3).backward(); };
        if (step == 1) {
          backward();
        } else if (job.rank() == 0) {
          EXPECT_THAT(text_of<Mismatch>(backward),
                      AllOf(HasSubstr("step 2 of \"net\": rank 1 ended its part after step 1"),
                            HasSubstr("join()"), HasSubstr("mean()")));
        }
      }
    }
    if (job.rank() == 1) Group(job, {1}, "alone").barrier();
  });
}

}  // namespace
}  // namespace tutti::test::parameter_names_cases
