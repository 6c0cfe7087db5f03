// Batch normalisation over all members, beside torch's on the joined batch in one process.

#include "tutti/sync_batch_norm.h"

#include "comm/group_state.h"
#include "torch/split/whole.h"

namespace tutti::test::sync_batch_norm_cases {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Options = torch::nn::BatchNormOptions;

constexpr std::int64_t kChannels = 3;

/// torch's for any number of dimensions, as torch::nn::BatchNorm1d, 2d and 3d have it.
class Whole {
 public:
  explicit Whole(const Options& options) : norm_(options) { norm_->to(torch::kFloat64); }
  torch::Tensor forward(const torch::Tensor& x) {
    auto flat = x.dim() == 2 ? x : x.flatten(2);
    return norm_->forward(flat).view(x.sizes());
  }
  torch::nn::BatchNorm1d& norm() { return norm_; }

 private:
  torch::nn::BatchNorm1d norm_;
};

void give_affine(const torch::Tensor& weight, const torch::Tensor& bias) {
  if (!weight.defined()) return;
  const torch::NoGradGuard off;
  weight.copy_(drawn(90, {kChannels}));
  bias.copy_(drawn(91, {kChannels}));
}

std::vector<std::int64_t> sizes_of(std::int64_t rows, std::size_t dims) {
  std::vector<std::int64_t> sizes = {rows, kChannels, 5, 2, 3};
  sizes.resize(dims);
  return sizes;
}

void expect_as_whole(const Group& group, const Options& options, std::size_t dims,
                     bool channels_last) {
  SyncBatchNorm mine(group, options);
  mine->to(torch::kFloat64);
  Whole whole(options);
  give_affine(mine->weight, mine->bias);
  give_affine(whole.norm()->weight, whole.norm()->bias);
  const UnevenBatch batch(group);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto what = fmt::format("{} dims, step {}", dims, step);
    const auto all = drawn(10 + step, sizes_of(batch.total(), dims)) * 3 + 1.5;
    const auto weights = drawn(20 + step, all.sizes());
    auto x = batch.mine(all).clone();
    if (channels_last) {
      x = x.contiguous(dims == 4 ? at::MemoryFormat::ChannelsLast
                                 : at::MemoryFormat::ChannelsLast3d);
    }
    x.requires_grad_();
    mine->zero_grad();
    const auto y = mine->forward(x);
    EXPECT_EQ(y.strides(), x.strides()) << what;
    ops::backward(group, curved(y, batch.mine(weights)));

    auto whole_x = all.clone().requires_grad_();
    whole.norm()->zero_grad();
    const auto whole_y = whole.forward(whole_x);
    curved(whole_y, weights).backward();
    expect_near(y, batch.mine(whole_y), what);
    expect_near(x.grad(), batch.mine(whole_x.grad()), what);
    if (options.affine()) {
      auto gradients = torch::stack({mine->weight.grad(), mine->bias.grad()});
      all_reduce(group, gradients, Reduction::sum);
      expect_near(gradients, torch::stack({whole.norm()->weight.grad(), whole.norm()->bias.grad()}),
                  what);
    }
    if (!options.track_running_stats()) continue;
    expect_near(mine->running_mean, whole.norm()->running_mean, what);
    expect_near(mine->running_var, whole.norm()->running_var, what);
    EXPECT_EQ(mine->num_batches_tracked.item<std::int64_t>(), step + 1);
    auto first = torch::stack({mine->running_mean, mine->running_var});
    broadcast(group, first, 0);
    EXPECT_TRUE(torch::equal(first, torch::stack({mine->running_mean, mine->running_var})))
        << "not the bits of rank 0";
  }
  mine->eval();
  whole.norm()->eval();
  if (!options.track_running_stats()) return;
  const auto x = drawn(50 + static_cast<std::uint64_t>(group.rank()), sizes_of(1, dims));
  const auto calls = group.state()->calls();
  expect_near(mine->forward(x), whole.forward(x), "eval");
  EXPECT_EQ(group.state()->calls(), calls) << "nothing is sent in eval()";
}

class SyncBatchNormOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, SyncBatchNormOf, ::testing::ValuesIn(kNumbersOfWorkers));

// promise: sync_batch_norm.h#SyncBatchNormImpl, sync_batch_norm.h#forward
TEST_P(SyncBatchNormOf, IsTorchsOnTheJoinedBatch) {
  on_workers(GetParam(), [](const Job& job) {
    const Group group(job);
    for (const std::size_t dims : {2, 3, 4, 5}) {
      expect_as_whole(group, Options(kChannels), dims, false);
      if (dims > 3) expect_as_whole(group, Options(kChannels), dims, true);
    }
    expect_as_whole(group, Options(kChannels).momentum(0.3).eps(1e-2), 3, false);
    expect_as_whole(group, Options(kChannels).momentum(std::nullopt), 2, false);
    expect_as_whole(group, Options(kChannels).affine(false), 4, true);
    expect_as_whole(group, Options(kChannels).track_running_stats(false), 2, false);
  });
}

/// The gradient of x, of a batch norm whose result is rectified, in place or not.
torch::Tensor rectified_gradient(const Group& group, bool is_affine, bool in_place) {
  SyncBatchNorm norm(group, Options(kChannels).affine(is_affine));
  norm->to(torch::kFloat64);
  give_affine(norm->weight, norm->bias);
  auto x = drawn(static_cast<std::uint64_t>(group.rank()), {5, kChannels}).requires_grad_();
  auto y = norm->forward(x);
  if (in_place) {
    y.relu_();
  } else {
    y = y.relu();
  }
  ops::backward(group, curved(y, drawn(7, {5, kChannels})));
  return x.grad();
}

// promise: sync_batch_norm.h#forward
TEST(SyncBatchNorm, AResultThatIsChangedInPlaceHasTheGradientOfOneThatIsNot) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    for (const bool is_affine : {true, false}) {
      EXPECT_TRUE(torch::equal(rectified_gradient(group, is_affine, true),
                               rectified_gradient(group, is_affine, false)))
          << is_affine;
    }
  });
}

// promise: sync_batch_norm.h#forward
TEST(SyncBatchNorm, AnInputThatIsChangedInPlaceBeforeBackwardIsTorchsError) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    SyncBatchNorm norm(group, Options(kChannels).affine(false));
    const auto leaf = drawn(1, {4, kChannels}).requires_grad_();
    auto x = leaf * 1;
    const auto y = norm->forward(x);
    x.add_(1);
    EXPECT_THAT(text_of<c10::Error>([&] { curved(y, y.detach()).backward(); }),
                HasSubstr("has been modified by an inplace operation"));
    // A tensor of inference mode is no part of a graph, and cannot be changed.
    torch::Tensor constant;
    {
      const c10::InferenceMode inference;
      constant = drawn(2, {4, kChannels});
    }
    curved(norm->forward(constant), drawn(3, {4, kChannels})).backward();
  });
}

// promise: sync_batch_norm.h#SyncBatchNorm
TEST(SyncBatchNorm, ALargeMeanCostsNoDigits) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    SyncBatchNorm mine(group, Options(kChannels).momentum(1.0));
    mine->to(torch::kFloat64);
    // Members' means differ less than their values: E[x²] − E[x]² would have no digit left.
    const auto all = drawn(1, {60, kChannels});
    mine->forward(all.slice(0, job.rank() * 20, job.rank() * 20 + 20) + 1e9);
    expect_near(mine->running_var, all.var(0), "variance", 1e-6);
    // In float32, too.
    SyncBatchNorm narrow(group, Options(kChannels).momentum(1.0));
    const auto some = all.to(torch::kFloat32);
    narrow->forward(some.slice(0, job.rank() * 20, job.rank() * 20 + 20) + 1000);
    expect_near(narrow->running_var, (some + 1000).to(torch::kFloat64).var(0), "variance", 1e-5);
  });
}

TEST(SyncBatchNorm, NarrowSamplesStayNarrowAndAreAddedInFloat32) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    SyncBatchNorm mine(group, Options(kChannels));
    torch::nn::BatchNorm1d whole{torch::nn::BatchNorm1dOptions(kChannels)};
    const auto all = drawn(1, {600, kChannels}).to(torch::kBFloat16);
    auto x = all.slice(0, job.rank() * 200, job.rank() * 200 + 200).clone().requires_grad_();
    const auto y = mine->forward(x);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    const auto wanted = whole->forward(all.to(torch::kFloat32));
    expect_near(y.to(torch::kFloat32), wanted.slice(0, job.rank() * 200, job.rank() * 200 + 200),
                "values", 0.01);
    expect_near(mine->running_var, whole->running_var, "variance", 1e-5);
    ops::backward(group, y.square().sum());
    EXPECT_EQ(x.grad().scalar_type(), torch::kBFloat16);
  });
}

// promise: sync_batch_norm.h#SyncBatchNorm
TEST(SyncBatchNorm, OneSampleOfAllMembersIsRefusedOnAll) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    SyncBatchNorm mine(group, Options(kChannels));
    const auto some = [&](int rank) {
      return torch::ones({job.rank() == rank ? 1 : 0, kChannels});
    };
    EXPECT_THAT(text_of<InvalidArgument>([&] { mine->forward(some(1)); }),
                HasSubstr("expected more than 1 value per channel when training, got 1 over all"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { mine->forward(some(-1)); }),
                HasSubstr("when training, got 0 over all"));
    EXPECT_EQ(mine->num_batches_tracked.item<std::int64_t>(), 0);
    const auto y = mine->forward(torch::ones({1, kChannels}) * job.rank());
    EXPECT_NEAR(y[0][0].item<double>(), (job.rank() - 1) * std::sqrt(1.5), 1e-3);
    ops::backward(group, y.sum());
  });
}

// promise: sync_batch_norm.h#SyncBatchNorm
TEST(SyncBatchNorm, OtherOptionsOnAnotherMemberAreAMismatch) {
  const auto with = [](const Options& other) {
    return ends_of(2, [&](const Group& group) {
      const SyncBatchNorm layer(group, group.rank() == 0 ? Options(4) : other);
    });
  };
  EXPECT_THAT(with(Options(5)),
              Each("SyncBatchNorm: workers disagree about the layer: channels is 4 on rank 0, 5 on "
                   "rank 1"));
  EXPECT_THAT(with(Options(4).momentum(std::nullopt)),
              Each(HasSubstr("momentum is 0.1 on rank 0")));
  EXPECT_THAT(with(Options(4).eps(1)), Each(HasSubstr("eps is 1e-05 on rank 0, 1 on rank 1")));
  EXPECT_THAT(with(Options(4).affine(false)), Each(HasSubstr("affine is yes on rank 0")));
  EXPECT_THAT(with(Options(4).track_running_stats(false)),
              Each(HasSubstr("track_running_stats is yes on rank 0")));
}

// promise: sync_batch_norm.h#SyncBatchNormImpl
TEST(SyncBatchNorm, WhatCannotBeIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto refused = [&](const Options& options) {
      return text_of<InvalidArgument>([&] { const SyncBatchNorm layer(group, options); });
    };
    EXPECT_EQ(refused(Options(0)), "SyncBatchNorm: 0 channels");
    EXPECT_EQ(refused(Options(2).eps(-1)), "SyncBatchNorm: eps -1, momentum 0.1");
    EXPECT_EQ(refused(Options(2).momentum(1.5)), "SyncBatchNorm: eps 1e-05, momentum 1.5");
    SyncBatchNorm layer(group, Options(2));
    for (const auto& x :
         {torch::ones({2, 3}), torch::ones({2}), torch::ones({2, 2}).to(at::kLong)}) {
      EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward(x); }),
                  HasSubstr("SyncBatchNorm takes [b, 2, *], not"));
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward({}); }), HasSubstr("not nothing"));
  });
}

}  // namespace
}  // namespace tutti::test::sync_batch_norm_cases
