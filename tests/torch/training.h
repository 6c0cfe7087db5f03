#pragma once

// Shared by the tests of DataParallel: workers as processes, and comparisons with plain libtorch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/process_ranks.h"
#include "tutti/tutti.h"

namespace tutti::test {

/// Runs `body` on that many workers, one intra-op thread each; any failed expectation in any of
/// them fails the test.
inline void on_workers(int size, const std::function<void(const Job&)>& body) {
  const auto outcome = run_process_ranks(size, [&](const Job& job) {
    at::set_num_threads(1);
    body(job);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

/// The same, and what `body` returned on rank 0, in at most a pipe's 64 KiB.
inline std::string text_of_rank_0(int size, const std::function<std::string(const Job&)>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  on_workers(size, [&](const Job& job) {
    const auto text = body(job);
    if (job.rank() != 0) return;
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  });
  close(ends[1]);
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  return text;
}

/// What a worker's exception says, or "" if there was none.
template <class Thrown = Error>
std::string text_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

/// The same bytes on all members of the group.
inline void expect_equal_everywhere(const Group& group, const torch::nn::Module& module) {
  const auto mine = parameters_sha256(module);
  std::string all(static_cast<std::size_t>(group.size()) * 64, ' ');
  group.all_gather({mine.data(), 64, DType::uint8},
                   {all.data(), static_cast<std::int64_t>(all.size()), DType::uint8});
  for (int r = 0; r < group.size(); ++r)
    EXPECT_EQ(all.substr(static_cast<std::size_t>(r) * 64, 64), mine);
}

inline torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(6, 17), torch::nn::Tanh(),
                               torch::nn::Linear(17, 3));
}

inline torch::optim::SGD momentum_and_decay(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters,
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
}

/// Copies parameters by position.
inline void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  auto targets = to.parameters();
  const auto sources = from.parameters();
  for (std::size_t p = 0; p < sources.size(); ++p) targets[p].copy_(sources[p]);
}

inline void expect_close(const torch::nn::Module& a, const torch::nn::Module& b, double tolerance) {
  const auto left = a.named_parameters();
  const auto right = b.named_parameters();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t p = 0; p < left.size(); ++p) {
    const auto difference = (left[p].value() - right[p].value()).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << left[p].key();
  }
}

/// Rows of a batch that is the same on all workers and differs from step to step.
struct Batch {
  torch::Tensor x, y;
  Batch(std::int64_t rows, std::uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    x = torch::randn({rows, 6}, generator);
    y = torch::randn({rows, 3}, generator);
  }
  torch::Tensor loss(torch::nn::Sequential& model, std::int64_t begin, std::int64_t end) const {
    return torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
  }
};

/// Rows of a batch as the loss of a shard.
inline ShardAnswer rows_of(Shard& shard, torch::nn::Sequential& model, const Batch& batch) {
  const auto [begin, end] = share_of(batch.x.size(0), shard.index(), shard.count());
  if (begin == end) return shard.nothing();
  return shard.loss(batch.loss(model, begin, end), static_cast<double>(end - begin));
}

}  // namespace tutti::test
