// What an open step is given of a parameter: by backwards, by hand, and by both.

#include "torch/data_parallel/parameter_gradients.h"

#include "sync/step/array_source.h"
#include "torch/training.h"

namespace tutti::test::parameter_gradients_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Notes which parameters were written for the last time.
class Told final : public ArraySource {
 public:
  explicit Told(StepExchange& exchange) : ArraySource(exchange.nodes(), {}) {}
  void wrote(std::uint32_t parameter, double) override { parameters.push_back(parameter); }
  void begin(double) override {}
  bool must_be_kept(bool) const override { return false; }
  void note() override {}
  void commit(StepReport&) override {}
  TrafficReport traffic() const override { return {}; }
  std::vector<std::uint32_t> parameters;

 private:
  void fold_to(const ElementRange&, void*, bool) override {}
};

/// One worker, and a model of two vectors.
class Intake {
 public:
  explicit Intake(const Job& job)
      : model_({{"a", first}, {"b", second}}, {}),
        exchange(Group(job), model_.plan({}), {.name = "model", .sync_buffers = false}),
        told(exchange),
        gradients(model_, exchange, sources) {
    exchange.open_one_backward(1);
  }
  void finish() {
    exchange.arrive({});
    StepFacts facts = {.touched = exchange.complete([&] { exchange.fold_slices(); }).touched};
    gradients.commit(facts);
  }

  torch::Tensor first = torch::zeros({3}).requires_grad_();
  torch::Tensor second = torch::zeros({2}).requires_grad_();

 private:
  WrappedModel model_;

 public:
  StepExchange exchange;
  Told told;
  std::vector<GradientSource*> sources = {&told};
  ParameterGradients gradients;
};

TEST(ParameterGradients, AGradientOfABackwardComesOnTopOfOneByHand) {
  on_workers(1, [](const Job& job) {
    Intake one(job);
    one.first.mutable_grad() = torch::tensor({1.0F, 2.0F, 3.0F});
    EXPECT_TRUE(one.gradients.holds_set_by_hand());
    one.gradients.take(0, torch::tensor({10.0F, 20.0F, 30.0F}), true);
    EXPECT_FALSE(one.first.grad().defined());
    EXPECT_FALSE(one.gradients.holds_set_by_hand());
    EXPECT_THAT(one.told.parameters, ElementsAre(0)) << "once: the one by hand is not the last";
    one.finish();
    EXPECT_TRUE(torch::equal(one.first.grad(), torch::tensor({11.0F, 22.0F, 33.0F})));
    EXPECT_FALSE(one.second.grad().defined());
  });
}

TEST(ParameterGradients, GradientsByHandAreTakenOfAllParametersThatHoldOne) {
  on_workers(1, [](const Job& job) {
    Intake one(job);
    one.second.mutable_grad() = torch::tensor({4.0F, 5.0F});
    one.gradients.take_set_by_hand(true);
    EXPECT_THAT(one.told.parameters, ElementsAre(1));
    one.finish();
    EXPECT_FALSE(one.first.grad().defined());
    EXPECT_TRUE(torch::equal(one.second.grad(), torch::tensor({4.0F, 5.0F})));
  });
}

TEST(ParameterGradients, AnotherGradientMayFollowOneThatIsNotTheLast) {
  on_workers(1, [](const Job& job) {
    Intake one(job);
    one.gradients.take(1, torch::tensor({1.0F, 2.0F}), false);
    EXPECT_THAT(one.told.parameters, IsEmpty());
    one.gradients.take(1, torch::tensor({3.0F, 4.0F}), true);
    one.finish();
    EXPECT_TRUE(torch::equal(one.second.grad(), torch::tensor({4.0F, 6.0F})));
  });
}

TEST(ParameterGradients, AReducedGradientThatIsStillThereIsNamed) {
  on_workers(1, [](const Job& job) {
    Intake one(job);
    one.gradients.take(0, torch::ones({3}), true);
    one.finish();
    EXPECT_THAT(text_of<InvalidArgument>([&] { one.gradients.holds_set_by_hand(); }),
                HasSubstr("parameter \"a\""));
    one.first.mutable_grad().reset();
    EXPECT_FALSE(one.gradients.holds_set_by_hand());
  });
}

}  // namespace
}  // namespace tutti::test::parameter_gradients_cases
