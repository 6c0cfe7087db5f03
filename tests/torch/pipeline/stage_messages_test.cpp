// Messages between stages, as bytes and between workers.

#include "torch/pipeline/stage_messages.h"

#include "torch/training.h"

namespace tutti::test::stage_messages_cases {
namespace {

StageMessage through_bytes(const StageMessage& message) {
  const auto bytes = torch::empty({static_cast<std::int64_t>(packed_size(message))}, torch::kUInt8);
  pack(message, static_cast<std::byte*>(bytes.data_ptr()));
  return unpack(bytes);
}

StageMessage sample() {
  StageMessage message{.weight = 0.1};
  message.random_state = torch::arange(5, torch::kUInt8);
  message.tensors = {torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast),
                     {},
                     torch::randn({3, 4}).t(),
                     torch::arange(7),
                     torch::randn({2, 6}).slice(1, 0, 3),
                     torch::ones({}, torch::kBFloat16),
                     torch::empty({0, 3}, torch::kBool)};
  message.places = {0, 1, 2, 3, 4, 5, 6, 2};
  message.need_gradient = {1, 0, 1, 0, 1, 1, 0};
  message.used = {0, 1, 1};
  message.parameters = {{2, torch::randn({3})}, {0, torch::randn({2, 2})}};
  return message;
}

void expect_equal(const StageMessage& got, const StageMessage& expected) {
  EXPECT_EQ(got.state, expected.state);
  EXPECT_EQ(got.weight, expected.weight);
  EXPECT_EQ(got.places, expected.places);
  EXPECT_EQ(got.need_gradient, expected.need_gradient);
  EXPECT_EQ(got.used, expected.used);
  EXPECT_EQ(got.random_state.defined(), expected.random_state.defined());
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < got.tensors.size(); ++i) {
    ASSERT_EQ(got.tensors[i].defined(), expected.tensors[i].defined()) << i;
    if (!got.tensors[i].defined()) continue;
    EXPECT_EQ(got.tensors[i].scalar_type(), expected.tensors[i].scalar_type()) << i;
    EXPECT_TRUE(torch::equal(got.tensors[i], expected.tensors[i])) << i;
    // What is dense keeps its layout: a kernel chosen by it gives other bits.
    if (expected.tensors[i].is_non_overlapping_and_dense()) {
      EXPECT_EQ(got.tensors[i].strides(), expected.tensors[i].strides()) << i;
    }
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.tensors[i].const_data_ptr()) % 64, 0U) << i;
  }
  ASSERT_EQ(got.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < got.parameters.size(); ++i) {
    EXPECT_EQ(got.parameters[i].first, expected.parameters[i].first);
    EXPECT_TRUE(torch::equal(got.parameters[i].second, expected.parameters[i].second));
  }
}

// promise: pipeline.h#PipelineLayer
TEST(StageMessages, BytesBringBackWhatWasPacked) {
  const auto message = sample();
  expect_equal(through_bytes(message), message);
  expect_equal(through_bytes({.state = StageMessage::State::nothing}),
               {.state = StageMessage::State::nothing});
}

TEST(StageMessages, TensorsLiveAsLongAsTheyAreHeld) {
  torch::Tensor kept;
  const auto message = sample();
  { kept = through_bytes(message).tensors[3]; }
  EXPECT_TRUE(torch::equal(kept, torch::arange(7)));
}

TEST(StageMessages, ArriveInTheirOrderWithoutWaitingForTheReceiver) {
  on_workers(3, [](const Job& job) {
    const Group group(job, "test");
    StepMemory memory(group, "model");
    StageMessages messages(memory, 3, "model");
    torch::manual_seed(1);
    // The sizes differ, so that room which becomes free does not always fit.
    std::vector<torch::Tensor> sent;
    for (int k = 0; k < 40; ++k) sent.push_back(torch::randn({k % 7 * 1000 + 1}));
    for (int round = 0; round < 3; ++round) {
      if (job.rank() < 2) {
        for (const auto& tensor : sent) {
          messages.send(job.rank() + 1, {.tensors = {tensor}, .places = {0}}, "results");
        }
      }
      if (job.rank() > 0) {
        for (const auto& tensor : sent) {
          EXPECT_TRUE(
              torch::equal(messages.receive(job.rank() - 1, "results").tensors.at(0), tensor));
        }
      }
      messages.finish();
    }
    EXPECT_EQ(messages.parameter_bytes(), 0U);
  });
}

}  // namespace
}  // namespace tutti::test::stage_messages_cases
