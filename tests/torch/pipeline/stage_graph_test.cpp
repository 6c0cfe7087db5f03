// A stage's backward, whole and in halves, against autograd's own.

#include "torch/pipeline/stage_graph.h"

#include <torch/csrc/autograd/variable.h>

#include "torch/training.h"

namespace tutti::test::stage_graph_cases {
namespace {

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(5, 5));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
    convolution = register_module("convolution", torch::nn::Conv1d(1, 2, 3));
    last = register_module("last", torch::nn::Linear(6, 4));
    twice = register_parameter("twice", torch::randn({5}));
    alone = register_parameter("alone", torch::randn({4}));
  }
  /// Of x and of what is handed through.
  TensorList forward(const torch::Tensor& x, const torch::Tensor& through) {
    auto y = torch::gelu(first->forward(x * twice));
    y = norm->forward(y + x) * twice;
    y = convolution->forward(y.unsqueeze(1)).flatten(1);
    return {last->forward(y), through, alone * 2};
  }
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Conv1d convolution{nullptr};
  torch::nn::Linear last{nullptr};
  torch::Tensor twice;
  torch::Tensor alone;
};

TensorList given() {
  torch::manual_seed(9);
  return {torch::randn({3, 4}), torch::randn({3, 2}), torch::randn({4})};
}

/// Gradients of both inputs, and of all parameters.
TensorList gradients_of(const Net& net, const TensorList& inputs) {
  auto all = inputs;
  for (const auto& parameter : net.parameters()) all.push_back(parameter.grad());
  return all;
}

TensorList by_autograd() {
  Net net;
  const auto x = torch::randn({3, 5}).requires_grad_();
  const auto through = torch::randn({3, 2}).requires_grad_();
  torch::autograd::backward(net.forward(x, through), given());
  return gradients_of(net, {x.grad(), through.grad()});
}

void expect_same(const TensorList& got, const TensorList& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
  }
}

struct Entered {
  Net net;
  StageGraph graph;
  TensorList inputs;
  TensorList results;
  Entered() {
    const auto x = torch::randn({3, 5});
    const auto through = torch::randn({3, 2});
    inputs = graph.enter({x, through}, {1, 1});
    results = net.forward(inputs[0], inputs[1]);
    graph.leave(results);
  }
};

TEST(StageGraph, AWholeBackwardIsAutograds) {
  Entered stage;
  stage.graph.backward(given(), {});
  expect_same(gradients_of(stage.net, stage.graph.take_input_gradients()), by_autograd());
}

TEST(StageGraph, TwoHalvesTogetherAreAutograds) {
  Entered stage;
  stage.graph.backward_inputs(given(), {}, {});
  const auto inputs = stage.graph.take_input_gradients();
  expect_same(inputs, {by_autograd()[0], by_autograd()[1]});
  stage.graph.backward_weights();
  expect_same(gradients_of(stage.net, inputs), by_autograd());
}

TEST(StageGraph, TheFirstHalfLeavesWeightsThatCanWaitToTheSecond) {
  Entered stage;
  stage.graph.backward_inputs(given(), {}, {});
  for (const auto& item : stage.net.named_parameters()) {
    // A result is the parameter's own: no node between it and an input waits.
    EXPECT_EQ(item.value().grad().defined(), item.key() == "alone") << item.key();
  }
  stage.graph.backward_weights();
  for (const auto& item : stage.net.named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
  }
}

TEST(StageGraph, HooksOfTheProgramFireOnceInEitherHalf) {
  Net net;
  const auto x = torch::randn({3, 5});
  StageGraph graph;
  const auto inputs = graph.enter({x}, {1});
  int fired = 0;
  int of_parameter = 0;
  net.first->weight.register_hook([&](const torch::Tensor&) { ++of_parameter; });
  const auto inner = net.first->forward(inputs[0]);
  inner.register_hook([&](const torch::Tensor& gradient) {
    ++fired;
    return gradient * 2;
  });
  graph.leave({inner.sum()});
  graph.backward_inputs({torch::ones({})}, {}, {});
  graph.backward_weights();
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(of_parameter, 1);
  EXPECT_TRUE(torch::equal(net.first->bias.grad(), torch::full({5}, 6.0F)));
}

/// ((1e8 + 1) − 1e8) is 0 in float32, any other order is 1: the latest use is the first term.
// promise: pipeline.h#Pipeline
TEST(StageGraph, WhatLaterStagesHaveFoundIsTheFirstTerm) {
  for (const bool halves : {false, true}) {
    const auto weight = torch::ones({1}).requires_grad_();
    StageGraph graph;
    const auto in = graph.enter({torch::ones({1})}, {1});
    const auto earlier = in[0] * weight * -1e8F;
    const auto later = in[0] * weight;
    graph.leave({earlier + later});
    const std::vector<ParameterGradient> more = {{weight, torch::full({1}, 1e8F)}};
    if (halves) {
      graph.backward_inputs({torch::ones({1})}, more, {});
      graph.backward_weights();
    } else {
      graph.backward({torch::ones({1})}, more);
    }
    EXPECT_EQ(weight.grad().item<float>(), 0) << halves;
  }
}

/// The uses' gradients are −1e8, 1 and 1e8, from the last one on: 0 in float32 in this order.
TEST(StageGraph, AParameterOfSeveralUsesIsSummedFromTheLastOneInEitherHalf) {
  const auto sum_of = [](bool halves) {
    const auto weight = torch::ones({1}).requires_grad_();
    StageGraph graph;
    auto x = graph.enter({torch::ones({1})}, {1})[0];
    x = torch::sin(x) * 0 + (x * weight) * 1e8F + (x * weight) + (x * weight) * -1e8F;
    graph.leave({x});
    if (halves) {
      graph.backward_inputs({torch::ones({1})}, {}, {});
      EXPECT_FALSE(weight.grad().defined());
      graph.backward_weights();
    } else {
      graph.backward({torch::ones({1})}, {});
    }
    return weight.grad().item<float>();
  };
  EXPECT_EQ(sum_of(false), 0);
  EXPECT_EQ(sum_of(true), 0);
}

TEST(StageGraph, WhatEnteredAnotherGraphIsFound) {
  StageGraph first;
  StageGraph second;
  const auto x = first.enter({torch::ones({1})}, {1})[0];
  const auto y = second.enter({torch::ones({1})}, {1})[0];
  first.leave({x * 2});
  second.leave({x + y});
  EXPECT_FALSE(first.reaches_elsewhere());
  EXPECT_TRUE(second.reaches_elsewhere());
}

// promise: pipeline.h#Pipeline
TEST(StageGraph, ATensorThatIsHandedThroughBringsItsGradientFirst) {
  StageGraph graph;
  const auto in = graph.enter({torch::ones({1})}, {1});
  const auto result = in[0] * -1e8F + in[0];
  graph.leave({result, in[0]});
  graph.backward({torch::ones({1}), torch::full({1}, 1e8F)}, {});
  EXPECT_EQ(graph.take_input_gradients()[0].item<float>(), 0);
}

TEST(StageGraph, WhatHasEnteredMayBeChangedInPlace) {
  StageGraph graph;
  auto in = graph.enter({torch::tensor({-1.0F, 2.0F})}, {1});
  in[0].relu_();
  graph.leave({in[0] * 3});
  graph.backward({torch::ones({2})}, {});
  EXPECT_TRUE(torch::equal(graph.take_input_gradients()[0], torch::tensor({0.0F, 3.0F})));
}

TEST(StageGraph, OfAStageThatNothingWithAGradientEntersTheSecondHalfIsAll) {
  const auto weight = torch::ones({2}).requires_grad_();
  StageGraph graph;
  const auto in = graph.enter({torch::tensor({-1.0F, 2.0F})}, {0});
  graph.leave({in[0] * weight, torch::ones({2})});
  graph.backward_inputs({torch::ones({2}), {}}, {}, {});
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(graph.take_input_gradients()[0].defined());
  graph.backward_weights();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({-1.0F, 2.0F})));
}

TEST(StageGraph, ParametersThatAnEarlierStageHasReadAreOfTheFirstHalf) {
  const auto tied = torch::ones({2}).requires_grad_();
  const auto own = torch::ones({2}).requires_grad_();
  StageGraph graph;
  const auto in = graph.enter({torch::tensor({-1.0F, 2.0F})}, {1});
  graph.leave({in[0] * tied * own});
  graph.backward_inputs({torch::ones({2})}, {}, {tied});
  EXPECT_TRUE(tied.grad().defined());
  EXPECT_FALSE(own.grad().defined());
  graph.backward_weights();
  EXPECT_TRUE(torch::equal(own.grad(), tied.grad()));
}

}  // namespace
}  // namespace tutti::test::stage_graph_cases
