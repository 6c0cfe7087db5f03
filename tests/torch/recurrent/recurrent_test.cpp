// Recurrent nets in chunks of time: beside the module's own forward(), and with recomputation
// beside without.

#include "tutti/recurrent.h"

#include <ATen/autocast_mode.h>

#include "torch/recurrent/recurrent_cases.h"

namespace tutti::test::recurrent_cases {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 11;

/// Relative to the largest element of each tensor.
void expect_close(const TensorList& found, const TensorList& expected, double most,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].sizes(), expected[i].sizes()) << what << ", tensor " << i;
    const auto largest = expected[i].abs().max().item<double>();
    const auto off = (found[i] - expected[i]).abs().max().item<double>();
    EXPECT_LE(off, most * largest) << what << ", tensor " << i;
  }
}

void expect_same(const TensorList& found, const TensorList& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bytes(found[i], expected[i])) << what << ", tensor " << i;
  }
}

/// The module's own run in float64 is what float32 is held against too: torch's in float32 is off
/// by up to 2e-6 where many rows are added up.
template <class Module>
TensorList expected_of(const Shape& shape, std::int64_t steps) {
  return Case<Module>(shape, steps, torch::kFloat64).plain();
}

constexpr double tolerance_of(torch::ScalarType type) {
  return type == torch::kFloat32 ? 1e-6 : 1e-13;
}

template <class Module>
class Recurrent : public ::testing::Test {};
using Modules = ::testing::Types<torch::nn::LSTM, torch::nn::GRU>;
TYPED_TEST_SUITE(Recurrent, Modules);

template <class Module, class Body>
void for_each_shape(const Body& body) {
  at::set_num_threads(1);
  for (std::int64_t bits = 0; bits < 32; ++bits) {
    const auto bit = [&](int b) { return (bits >> b & 1) != 0; };
    for (const std::int64_t layers : {1, 2, 3}) {
      const Shape shape{.layers = layers,
                        .bidirectional = bit(0),
                        .bias = bit(1),
                        .batch_first = bit(2),
                        .dropout = bit(3) ? 0.4 : 0,
                        .lengths = bit(4)};
      if (layers == 1 && shape.dropout > 0) continue;
      body(shape);
    }
  }
}

// promise: recurrent.h#lengths, recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, HasTheResultsAndGradientsOfTheModuleAndTheSameBytesWithoutRecomputation) {
  for_each_shape<TypeParam>([](const Shape& shape) {
    const auto expected = expected_of<TypeParam>(shape, kSteps);
    for (const auto type : {torch::kFloat32, torch::kFloat64}) {
      const Case<TypeParam> of(shape, kSteps, type);
      for (const std::int64_t steps : {0, 1, 2, 3, 7, 11, 40}) {
        const auto what = shape.text() + ", chunks of " + std::to_string(steps);
        const auto again = of.in_chunks({.steps = steps});
        expect_close(again, expected, tolerance_of(type), what);
        expect_same(again, of.in_chunks({.steps = steps, .recompute = false}), what);
      }
    }
  });
}

// promise: recurrent.h#run_in_chunks
TEST(RecurrentLstm, ProjectsWhatAStepGives) {
  for (const bool bidirectional : {false, true}) {
    for (const bool lengths : {false, true}) {
      const Shape shape{
          .layers = 2, .bidirectional = bidirectional, .lengths = lengths, .projection = 3};
      for (const auto type : {torch::kFloat32, torch::kFloat64}) {
        const Case<torch::nn::LSTM> of(shape, kSteps, type);
        for (const std::int64_t steps : {1, 3, 11}) {
          const auto again = of.in_chunks({.steps = steps});
          expect_close(again, expected_of<torch::nn::LSTM>(shape, kSteps), tolerance_of(type),
                       shape.text());
          expect_same(again, of.in_chunks({.steps = steps, .recompute = false}), shape.text());
        }
      }
    }
  }
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, OfASizeThatIsNoToy) {
  at::set_num_threads(1);
  const Shape shape{.layers = 2,
                    .bidirectional = true,
                    .dropout = 0.25,
                    .sequences = 16,
                    .input = 48,
                    .hidden = 64};
  const Case<TypeParam> of(shape, 100, torch::kFloat32);
  const auto again = of.in_chunks({});
  expect_close(again, expected_of<TypeParam>(shape, 100), 1e-6, shape.text());
  expect_same(again, of.in_chunks({.recompute = false}), shape.text());
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, TakesWhatIsPacked) {
  const Shape shape{.layers = 2, .bidirectional = true, .dropout = 0.3, .lengths = true};
  const Case<TypeParam> of(shape, kSteps, torch::kFloat64);
  for (const bool again : {false, true}) {
    expect_close(of.packed({.steps = 4, .recompute = again}), of.plain(), 1e-13, shape.text());
  }
}

TYPED_TEST(Recurrent, GivesZerosWhereNoSequenceLasts) {
  const Case<TypeParam> of({.batch_first = true}, kSteps, torch::kFloat32);
  const auto x = torch::randn({2, 5, 6});
  const auto y =
      std::get<0>(run_in_chunks(of.net, x, {}, {.lengths = torch::tensor({3, 2}, torch::kInt32)}));
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{2, 5, 5}));
  EXPECT_EQ(y.narrow(1, 3, 2).count_nonzero().template item<std::int64_t>(), 0);
  EXPECT_EQ(y[0].narrow(0, 0, 3).count_nonzero().template item<std::int64_t>(), 15);
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, WithoutAStateStartsFromZeros) {
  const Shape shape{.layers = 2, .bidirectional = true, .has_state = false};
  const Case<TypeParam> of(shape, kSteps, torch::kFloat64);
  expect_close(of.in_chunks({.steps = 3}), of.plain(), 1e-13, shape.text());
}

// An oracle besides torch: what a small change of each element does to the loss.
// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, GradientsAreThoseOfFiniteDifferences) {
  at::set_num_threads(1);
  const Shape shape{
      .layers = 2, .bidirectional = true, .lengths = true, .sequences = 2, .input = 2, .hidden = 2};
  Case<TypeParam> of(shape, 4, torch::kFloat64);
  const auto gradients = of.in_chunks({.steps = 3});
  const auto leaves = of.leaves();
  const auto first = gradients.size() - leaves.size();
  constexpr double kStep = 1e-6;
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    const auto values = leaves[l].detach().view({-1});
    for (std::int64_t e = 0; e < values.numel(); ++e) {
      const auto moved = [&](double by) {
        const torch::NoGradGuard no_grad;
        const auto before = values[e].template item<double>();
        values[e] = before + by;
        const auto loss = of.loss({.steps = 3}).template item<double>();
        values[e] = before;
        return loss;
      };
      EXPECT_NEAR(gradients[first + l].view({-1})[e].template item<double>(),
                  (moved(kStep) - moved(-kStep)) / (2 * kStep), 1e-8)
          << l << ", " << e;
    }
  }
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, OutsideTrainingDropsNothingAndWhereNoGradientIsRecordedKeepsNothing) {
  const Shape shape{.layers = 2, .dropout = 0.4};
  Case<TypeParam> of(shape, kSteps, torch::kFloat64);
  of.net->eval();
  expect_close(of.in_chunks({.steps = 3}), of.plain(), 1e-13, "eval");
  const auto recorded = of.loss({.steps = 3});
  const torch::NoGradGuard no_grad;
  const auto loss = of.loss({.steps = 3});
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_TRUE(same_bytes(loss, recorded));
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, DropsEverythingWhereDropoutIsOne) {
  const Case<TypeParam> of({.layers = 2, .dropout = 1}, kSteps, torch::kFloat64);
  of.plain();
  const auto drawn_next = torch::rand({3});
  of.in_chunks({.steps = 4});
  EXPECT_TRUE(same_bytes(torch::rand({3}), drawn_next)) << "nothing is drawn";
  for (const auto& [found, expected] : {std::pair(of.in_chunks({.steps = 4}), of.plain())}) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 0, 1e-13)) << i;
    }
  }
}

TYPED_TEST(Recurrent, AGradientThatNobodyWantsIsNotMadeAndTheOthersStay) {
  const Shape shape{.layers = 2, .bidirectional = true};
  Case<TypeParam> of(shape, kSteps, torch::kFloat64);
  const auto all = of.in_chunks({.steps = 4});
  const auto names = of.net->named_parameters().keys();
  auto parameters = of.net->parameters();
  const auto first = all.size() - parameters.size();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].set_requires_grad(false);
    const auto rest = of.in_chunks({.steps = 4});
    ASSERT_EQ(rest.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == first + p) {
        EXPECT_FALSE(rest[i].defined()) << names[p];
      } else {
        EXPECT_TRUE(same_bytes(rest[i], all[i])) << names[p] << ", tensor " << i;
      }
    }
    parameters[p].set_requires_grad(true);
  }
}

TYPED_TEST(Recurrent, AnyOfTheResultsMayBeUsedAloneAndChangedInPlace) {
  Case<TypeParam> of({.layers = 2}, kSteps, torch::kFloat64);
  for (int which = 0; which < 2; ++which) {
    const auto gradients = [&](bool plain) {
      const auto [y, hidden] = of.results(plain, {.steps = 4});
      // Backward does not read what was given.
      auto used = which == 0 ? y * 1 : hidden * 1;
      const auto given = which == 0 ? y : hidden;
      if (!plain) given.mul_(3);
      const auto loss = (plain ? used * 3 : given).sum();
      return torch::autograd::grad({loss}, of.net->parameters());
    };
    expect_close(gradients(false), gradients(true), 1e-13, std::to_string(which));
  }
}

TYPED_TEST(Recurrent, BackwardLeavesTheGradientsThatItIsGiven) {
  Case<TypeParam> of({.layers = 2, .bidirectional = true}, kSteps, torch::kFloat64);
  const auto [y, hidden] = of.results(false, {.steps = 4});
  const auto of_y = torch::randn_like(y);
  const auto of_hidden = torch::randn_like(hidden);
  const auto before = of_hidden.clone();
  const auto before_y = of_y.clone();
  torch::autograd::backward({y, hidden}, {of_y, of_hidden});
  EXPECT_TRUE(same_bytes(of_hidden, before));
  EXPECT_TRUE(same_bytes(of_y, before_y));
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, BackwardMayComeTwiceWhereTheGraphIsKept) {
  Case<TypeParam> of({.layers = 2, .dropout = 0.4}, kSteps, torch::kFloat32);
  for (const bool again : {false, true}) {
    const auto loss = of.loss({.steps = 4, .recompute = again});
    const auto first = torch::autograd::grad({loss}, of.net->parameters(), {}, true);
    expect_same(torch::autograd::grad({loss}, of.net->parameters()), first, "twice");
    EXPECT_THAT(text_of<c10::Error>([&] { loss.backward(); }), HasSubstr("second time"));
    EXPECT_THAT(text_of<Unsupported>([&] {
                  torch::autograd::grad({of.loss({.recompute = again, .name = "reader"})},
                                        of.net->parameters(), {}, true, /*create_graph=*/true);
                }),
                HasSubstr("run_in_chunks \"reader\": a second derivative"));
  }
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, HooksFireOnceOnTheWholeGradient) {
  Case<TypeParam> of({.layers = 2, .bidirectional = true}, kSteps, torch::kFloat64);
  std::map<std::string, std::vector<torch::Tensor>> seen;
  for (const auto& parameter : of.net->named_parameters()) {
    const auto name = parameter.key();
    parameter.value().register_hook(
        [&, name](const torch::Tensor& gradient) { seen[name].push_back(gradient.clone()); });
  }
  of.loss({.steps = 2}).backward();
  for (const auto& parameter : of.net->named_parameters()) {
    ASSERT_EQ(seen[parameter.key()].size(), 1U) << parameter.key();
    EXPECT_TRUE(same_bytes(seen[parameter.key()][0], parameter.value().grad()));
  }
}

// promise: recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, AWeightThatIsWrittenBeforeBackwardIsFound) {
  Case<TypeParam> of({.layers = 2}, kSteps, torch::kFloat64);
  auto weight = of.net->named_parameters()["weight_hh_l1"];
  {
    const auto loss = of.loss({.steps = 4});
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
    EXPECT_THAT(text_of<c10::Error>([&] { loss.backward(); }), HasSubstr("inplace operation"));
  }
  const auto loss = of.loss({.steps = 4, .name = "reader"});
  weight.variable_data()[0][0] += 0.25;  // autograd does not see it
  EXPECT_THAT(text_of<InvalidArgument>([&] { loss.backward(); }),
              HasSubstr("run_in_chunks \"reader\": run again, steps [8, 11) end in another state"));
}

TEST(RecurrentLstm, ACellThatAloneEndsOtherwiseIsFound) {
  const torch::nn::LSTM net(torch::nn::LSTMOptions(2, 2));
  auto bias = net->named_parameters()["bias_ih_l0"];
  bias.variable_data().narrow(0, 2, 2).fill_(50);  // forgets nothing
  const std::tuple state(torch::zeros({1, 1, 2}), torch::full({1, 1, 2}, 100.));
  const auto loss =
      std::get<1>(std::get<1>(run_in_chunks(net, torch::ones({3, 1, 2}), state))).sum();
  bias.variable_data()[4] += 1;  // a new value, of which tanh(100) shows nothing
  EXPECT_THAT(text_of<InvalidArgument>([&] { loss.backward(); }), HasSubstr("in another state"));
}

// promise: recurrent.h#lengths, recurrent.h#run_in_chunks
TYPED_TEST(Recurrent, WhatDoesNotFitIsRefused) {
  Case<TypeParam> of({.layers = 2, .bidirectional = true}, kSteps, torch::kFloat32);
  const auto says = [&](const std::string& text, const torch::Tensor& input,
                        const ChunkOptions& options = {.name = "net"}) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { run_in_chunks(of.net, input, {}, options); }),
                HasSubstr("run_in_chunks \"" + options.name + "\": " + text));
  };
  const auto x = torch::randn({kSteps, 4, 6});
  says("-1 steps in a chunk", x, {.steps = -1});
  says("an input of shape 11x6: 3 dims are expected, the last of 6", x.select(1, 0));
  says("an input of shape 11x4x5: 3 dims are expected, the last of 6", x.narrow(2, 0, 5));
  says("an input of shape 0x4x6, which has no sequence, or none of a step", x.narrow(0, 0, 0));
  // findings-3: C8
  says("an input of shape 11x0x6, which has no sequence, or none of a step", x.narrow(1, 0, 0));
  says("the input is undefined", {});
  says("the input is of Double, weights of Float", x.to(torch::kFloat64));
  const std::string expected = "lengths: 4 integers are expected, one for each sequence";
  says(expected, x, {.lengths = torch::tensor({1, 2, 3})});
  says(expected, x, {.lengths = torch::ones({4})});
  says(expected, x, {.lengths = torch::ones({4, 1}, torch::kInt64)});
  says("lengths from 0 to 3, of 11 steps", x, {.lengths = torch::tensor({1, 2, 3, 0})});
  says("lengths from 1 to 12, of 11 steps", x, {.lengths = torch::tensor({1, 2, 3, 12})});
  const auto refuses = [&](const std::string& text, const torch::Tensor& input) {
    EXPECT_THAT(text_of<Unsupported>([&] { run_in_chunks(of.net, input); }), HasSubstr(text));
  };
  refuses("the input is not dense", x.to_sparse());
  refuses("the input is on meta, and not on the CPU", torch::empty({2, 2, 6}, torch::kMeta));
  refuses("the input is of BFloat16, neither float32 nor float64", x.to(torch::kBFloat16));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  refuses("autocast is on", x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_THAT(text_of<InvalidArgument>([&] {
                of.run_with_state(x, torch::zeros({4, 3, 5}));
              }),
              HasSubstr("the hidden state of shape 4x3x5, not 4x4x5"));

  namespace rnn = torch::nn::utils::rnn;
  const auto says_of_packed = [&](const std::string& text, const PackedSequence& packed,
                                  const ChunkOptions& options = {}) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { run_in_chunks(of.net, packed, {}, options); }),
                HasSubstr(text));
  };
  const auto rows = torch::randn({5, 6});
  const auto counts = [](std::vector<std::int64_t> of_steps) {
    return torch::tensor(of_steps, torch::kInt64);
  };
  says_of_packed("whose batch sizes grow, or end in 0", PackedSequence(rows, counts({2, 3})));
  says_of_packed("whose batch sizes grow, or end in 0", PackedSequence(rows, counts({5, 0})));
  says_of_packed("of 5 rows, whose batch sizes have 4", PackedSequence(rows, counts({3, 1})));
  says_of_packed("an input of shape 5x5", PackedSequence(rows.narrow(1, 0, 5), counts({3, 2})));
  says_of_packed("lengths of a packed sequence", PackedSequence(rows, counts({3, 2})),
                 {.lengths = torch::tensor({2, 2, 1})});
}

// promise: recurrent.h#run_in_chunks
TEST(RecurrentLstm, ACellStateHasItsShape) {
  torch::nn::LSTM net(torch::nn::LSTMOptions(6, 5).proj_size(3));
  const auto x = torch::randn({2, 4, 6});
  const auto hidden = torch::zeros({1, 4, 3});
  EXPECT_THAT(text_of<InvalidArgument>([&] { run_in_chunks(net, x, std::tuple(hidden, hidden)); }),
              HasSubstr("the cell state of shape 1x4x3, not 1x4x5"));
}

// promise: recurrent.h#run_in_chunks
TEST(RecurrentLstm, ACellStateThatIsUndefinedIsZeros) {
  const torch::nn::LSTM net(torch::nn::LSTMOptions(6, 5));
  const auto x = torch::randn({2, 4, 6});
  const auto hidden = torch::randn({1, 4, 5});
  const auto of = [&](const torch::Tensor& cell) {
    return std::get<0>(run_in_chunks(net, x, std::tuple(hidden, cell)));
  };
  EXPECT_TRUE(of({}).equal(of(torch::zeros({1, 4, 5}))));
}

}  // namespace
}  // namespace tutti::test::recurrent_cases
