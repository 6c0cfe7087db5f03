// Layers in a row of which as many run again as the memory asks for.

#include "tutti/recompute_sequential.h"

#include "torch/recompute/memory_meter.h"
#include "torch/training.h"

namespace tutti::test::recompute_sequential {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct AttentionBlockImpl : torch::nn::Module {
  explicit AttentionBlockImpl(std::int64_t width)
      : attention(register_module(
            "attention",
            torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(width, 2)))),
        first(register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        second(
            register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        dropout(register_module("dropout", torch::nn::Dropout(0.1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto normal = first->forward(x);
    const auto y = x + std::get<0>(attention->forward(normal, normal, normal));
    return y + dropout->forward(down->forward(torch::gelu(up->forward(second->forward(y)))));
  }
  torch::nn::MultiheadAttention attention;
  torch::nn::LayerNorm first, second;
  torch::nn::Linear up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(AttentionBlock);

struct Case {
  std::string name;
  std::function<torch::nn::Sequential()> layers;
  torch::Tensor sample;
};

/// Layers of three kinds, equal and unequal ones, with results that are kept and such that are not.
std::vector<Case> cases() {
  const auto perceptron = [] {
    torch::nn::Sequential layers;
    const std::vector<std::int64_t> widths{64, 256, 96, 512, 64, 320, 128, 64, 400, 32};
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
      layers->push_back(torch::nn::Tanh());
    }
    return layers;
  };
  const auto convolution = [] {
    torch::nn::Sequential layers;
    std::int64_t channels = 3;
    for (int i = 0; i < 5; ++i) {
      layers->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 8 << (i / 2), 3).padding(1)));
      channels = 8 << (i / 2);
      layers->push_back(torch::nn::BatchNorm2d(channels));
      layers->push_back(torch::nn::ReLU());
      if (i % 2 == 1) layers->push_back(torch::nn::MaxPool2d(2));
    }
    layers->push_back(torch::nn::Flatten());
    layers->push_back(torch::nn::Linear(8 * 8 * 32, 10));
    return layers;
  };
  const auto attention = [] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 12; ++i) layers->push_back(AttentionBlock(32));
    return layers;
  };
  torch::manual_seed(1);
  return {{"perceptron", perceptron, torch::randn({512, 64})},
          {"convolution", convolution, torch::randn({8, 3, 32, 32})},
          {"attention", attention, torch::randn({64, 4, 32})}};
}

/// Peak of a step but the first, and its gradients.
std::pair<std::int64_t, std::string> step_of(torch::nn::Module& module,
                                             const std::function<torch::Tensor()>& forward) {
  module.train();
  for (auto& parameter : module.parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  torch::manual_seed(5);
  std::int64_t peak = 0;
  {
    MemoryMeter meter;
    const auto y = forward();
    (y * 1).sum().backward();  // as a loss: nobody keeps its gradient
    peak = meter.peak();
  }
  std::string bytes;
  for (const auto& parameter : module.parameters()) {
    bytes.append(static_cast<const char*>(parameter.grad().const_data_ptr()),
                 parameter.grad().nbytes());
  }
  for (const auto& buffer : module.buffers()) {
    bytes.append(static_cast<const char*>(buffer.const_data_ptr()), buffer.nbytes());
  }
  return {peak, bytes};
}

// promise: memory_plan.h#MemoryBudget, recompute_sequential.h#RecomputeSequential
TEST(RecomputeSequential, StaysWithinAnyBudgetWithTheGradientsOfThePlainRun) {
  at::set_num_threads(1);
  for (const auto& [name, make, sample] : cases()) {
    torch::manual_seed(2);
    auto plain = make();
    torch::manual_seed(2);
    const auto [plain_peak, expected] = step_of(*plain, [&] { return plain->forward(sample); });
    for (const double share : {0.0, 0.2, 0.5, 0.8, 1.0}) {
      torch::manual_seed(2);
      RecomputeSequential net(make());
      const auto sha = parameters_sha256(*net);
      torch::manual_seed(77);
      const auto plan = net->fit(sample, MemoryBudget::of_share(share));
      const auto next = torch::rand({1});
      torch::manual_seed(77);
      EXPECT_TRUE(torch::rand({1}).equal(next)) << "fit() draws nothing";
      EXPECT_EQ(parameters_sha256(*net), sha);
      for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      const auto [peak, gradients] = step_of(*net, [&] { return net->forward(sample); });
      EXPECT_EQ(gradients, expected) << name << " " << share;
      EXPECT_LE(static_cast<double>(peak), 1.05 * static_cast<double>(plan.budget))
          << name << " " << share << "\n"
          << plan.text();
      EXPECT_NEAR(static_cast<double>(peak), static_cast<double>(plan.peak),
                  0.1 * static_cast<double>(peak))
          << name << " " << share << "\n"
          << plan.text();
      if (share == 1) {
        EXPECT_EQ(plan.added_ms, 0);
        EXPECT_NEAR(static_cast<double>(peak), static_cast<double>(plain_peak),
                    0.01 * static_cast<double>(plain_peak));
      }
      if (share == 0) {
        EXPECT_LT(static_cast<double>(peak), 0.8 * static_cast<double>(plain_peak)) << name;
      }
    }
  }
}

// promise: memory_plan.h#MemorySegment, memory_plan.h#layers, recompute_sequential.h#fit
TEST(RecomputeSequential, LayersThatChangeTheirInputInPlaceStayWithTheLayerBeforeThem) {
  at::set_num_threads(1);
  const auto make = [] {
    torch::manual_seed(2);
    torch::nn::Sequential layers;
    for (int i = 0; i < 8; ++i) {
      layers->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(i == 0 ? 3 : 8, 8, 3).padding(1)));
      layers->push_back(torch::nn::BatchNorm2d(8));
      layers->push_back(torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
    }
    return layers;
  };
  const auto sample = torch::randn({8, 3, 32, 32});
  auto plain = make();
  const auto expected = step_of(*plain, [&] { return plain->forward(sample); }).second;
  for (const double share : {0.0, 0.3, 0.7, 1.0}) {
    RecomputeSequential net(make());
    const auto plan = net->fit(sample, MemoryBudget::of_share(share));
    ASSERT_EQ(plan.layers.size(), 16U);
    EXPECT_EQ(plan.layers[1].name, "1 BatchNorm2d + 2 ReLU");
    EXPECT_EQ(net->segments().back().last, 24);
    for (const auto& segment : net->segments()) EXPECT_NE(segment.first % 3, 2);
    const auto [peak, gradients] = step_of(*net, [&] { return net->forward(sample); });
    EXPECT_EQ(gradients, expected) << share;
    EXPECT_LE(static_cast<double>(peak), 1.05 * static_cast<double>(plan.budget)) << plan.text();
    EXPECT_NEAR(static_cast<double>(peak), static_cast<double>(plan.peak),
                0.1 * static_cast<double>(peak))
        << plan.text();
  }
  RecomputeSequential first(torch::nn::Sequential(
      torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)), torch::nn::Linear(4, 4)));
  const auto batch = torch::randn({2, 4});
  const auto before = batch.clone();
  EXPECT_THAT(text_of<InvalidArgument>([&] { first->fit(batch, MemoryBudget::of_share(1)); }),
              HasSubstr("layer 0 ReLU changes its input in place, the program's batch"));
  EXPECT_TRUE(batch.equal(before));
}

// promise: recompute_sequential.h#RecomputeSequentialImpl, recompute_sequential.h#segments
// promise: recompute_sequential.h#set_segments
TEST(RecomputeSequential, HasAboutTheRootOfItsLayersAsSegments) {
  const auto make = [](std::int64_t count) {
    torch::nn::Sequential layers;
    for (std::int64_t i = 0; i < count; ++i) layers->push_back(torch::nn::Linear(2, 2));
    return layers;
  };
  EXPECT_EQ(RecomputeSequential(make(16))->segments().size(), 4U);
  EXPECT_EQ(RecomputeSequential(make(17))->segments().size(), 5U);
  EXPECT_EQ(RecomputeSequential(make(0))->segments().size(), 0U);
  const RecomputeSequential three(make(7), RecomputeSequentialOptions{.segments = 3});
  EXPECT_EQ(three->segments(),
            (std::vector<MemorySegment>{{0, 3, true}, {3, 5, true}, {5, 7, true}}));
  EXPECT_EQ(three->named_parameters().keys().front(), "0.weight");
  for (const std::int64_t bad : {-1, 8}) {
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  RecomputeSequential(make(7), RecomputeSequentialOptions{.segments = bad});
                }),
                HasSubstr("segments of 7 layers"));
  }
  RecomputeSequential chosen(make(4));
  chosen->set_segments({{0, 3, false}, {3, 4, true}});
  EXPECT_EQ(chosen->segments().size(), 2U);
  EXPECT_THAT(text_of<InvalidArgument>([&] {
                chosen->set_segments({{0, 3, true}});
              }),
              HasSubstr("no segment has layer 3 of 4"));
  EXPECT_EQ(chosen->segments().size(), 2U);
}

// findings-3: C8
TEST(RecomputeSequential, ACutBeforeALayerThatChangesItsInputSaysWhereToCut) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::Sequential layers;
    for (int i = 0; i < 2; ++i) {
      layers->push_back(torch::nn::Linear(3, 3));
      layers->push_back(torch::nn::Linear(3, 3));
      layers->push_back(torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
      layers->push_back(torch::nn::Linear(3, 3));
    }
    RecomputeSequential trunk(layers, RecomputeSequentialOptions{.segments = 4});
    const auto x = torch::randn({2, 3});
    EXPECT_THAT(text_of<InvalidArgument>([&] { trunk->forward(x); }),
                AllOf(HasSubstr("[2, 4)\": the segment changes input 0 in place"),
                      HasSubstr("is not the first one of a segment: cut before the layer that it "
                                "changes the result of, by set_segments(), or let fit() cut")));
    trunk->set_segments({{0, 4, true}, {4, 8, true}});
    trunk->forward(x).sum().backward();
  });
}

// promise: recompute_sequential.h#fit
TEST(RecomputeSequential, BudgetsThatCannotBeMetAndHookedParametersAreRefused) {
  on_workers(1, [](const Job& job) {
    const auto sample = cases()[0].sample;
    RecomputeSequential net(cases()[0].layers(), RecomputeSequentialOptions{.name = "trunk"});
    const auto before = net->segments();
    EXPECT_THAT(text_of<InvalidArgument>([&] { net->fit(sample, MemoryBudget::of_bytes(1000)); }),
                AllOf(HasSubstr("recompute \"trunk\": a memory budget of 0.001 MB"),
                      HasSubstr("MB at least")));
    EXPECT_THAT(text_of<InvalidArgument>([&] { net->fit(sample, MemoryBudget::of_share(2)); }),
                HasSubstr("a share is from 0 to 1"));
    EXPECT_EQ(net->segments(), before);
    const auto plan = net->fit(sample, MemoryBudget::of_bytes(1'000'000'000));
    EXPECT_EQ(plan.added_ms, 0);
    DataParallel parallel(Group(job), *net);
    EXPECT_THAT(text_of<InvalidArgument>([&] { net->fit(sample, MemoryBudget::of_share(0)); }),
                HasSubstr("with parameter \"0.weight\" in a Trainer or a DataParallel"));
  });
}

}  // namespace
}  // namespace tutti::test::recompute_sequential
