// Momentum before anything is left out: against the scalar model, bit for bit.

#include "sync/coded/coded_model.h"

namespace tutti::test::coded {
namespace {

// promise: codec.h#MomentumCorrection
TEST(MomentumCorrection, DecayThenCorrectionThenSelectionOnAnyNumberOfWorkers) {
  expect_as_model({.codec = "topk:0.05",
                   .momentum_correction = MomentumCorrection{.momentum = 0.9, .weight_decay = 0.1}},
                  {1, 2, 3, 5, 8});
}

// promise: codec.h#MomentumCorrection
TEST(MomentumCorrection, OptionsDoWhatTheModelDoes) {
  const MomentumCorrection nesterov{.momentum = 0.7, .nesterov = true};
  expect_as_model({.codec = "topk:0.01", .momentum_correction = nesterov}, {2});
  expect_as_model({.codec = "threshold:300", .momentum_correction = nesterov}, {3});
  expect_as_model({.codec = "topk:0.05",
                   .logical_workers = 7,
                   .scope = CodecScope::tensor,
                   .clamp = 100,
                   .momentum_correction = MomentumCorrection{}},
                  {2});
  for (const auto message_format : {MessageFormat::sparse, MessageFormat::dense}) {
    expect_as_model({.codec = "topk:0.2",
                     .momentum_correction = MomentumCorrection{},
                     .message_format = message_format},
                    {2});
  }
}

// Without momentum and decay only the residual is left.
TEST(MomentumCorrection, OfNothingIsErrorFeedback) {
  const auto plain = model_of({.codec = "topk:0.05"});
  const auto corrected =
      model_of({.codec = "topk:0.05", .momentum_correction = MomentumCorrection{.momentum = 0}});
  for (std::size_t step = 0; step < plain.size(); ++step) {
    EXPECT_EQ(plain[step].gradients, corrected[step].gradients);
    EXPECT_EQ(plain[step].residuals, corrected[step].residuals);
  }
  expect_as_model({.codec = "topk:0.05", .momentum_correction = MomentumCorrection{.momentum = 0}},
                  {3});
}

TEST(MomentumCorrection, AStepThatIsDroppedLeavesNoVelocity) {
  expect_no_trace_of_dropped_steps(
      {.codec = "topk:0.05", .momentum_correction = MomentumCorrection{}});
}

}  // namespace
}  // namespace tutti::test::coded
