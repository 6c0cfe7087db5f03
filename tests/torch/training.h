#pragma once

// Shared by the tests of DataParallel: workers as processes, and comparisons with plain libtorch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/test_device.h"
#include "support/process_ranks.h"
#include "tutti/tutti.h"

namespace tutti::test {

/// The profile of the test device on which workers train, by the environment: none, the CPU.
inline std::optional<test_device::Held> test_device_profile() {
  const auto* const held = std::getenv("TUTTI_TEST_DEVICE");
  if (held == nullptr) return std::nullopt;
  return std::string_view(held) == "side streams" ? test_device::Held::kSideStreams
                                                  : test_device::Held::kDefaultStreams;
}

/// Runs `body` on that many workers, one intra-op thread each. What they draw is the same each time
/// and another on each worker. With a profile, what they make is made on devices, of which there
/// are two.
inline ProcessOutcome outcome_on(std::optional<test_device::Held> profile, int size,
                                 const std::function<void(const Job&)>& body) {
  return run_process_ranks(size, [&](const Job& job) {
    at::set_num_threads(1);
    if (profile) {
      test_device::register_device(2);
      test_device::hold(*profile);
      test_device::make_default(local_device(job));
    }
    torch::manual_seed(100 + static_cast<std::uint64_t>(job.rank()));
    body(job);
  });
}

/// Where the tests run.
inline ProcessOutcome outcome_on_workers(int size, const std::function<void(const Job&)>& body) {
  return outcome_on(test_device_profile(), size, body);
}

/// What `body` returned on rank 0, in at most a pipe's 64 KiB; any failed expectation in any worker
/// fails the test.
inline std::string text_on(std::optional<test_device::Held> profile, int size,
                           const std::function<std::string(const Job&)>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const auto outcome = outcome_on(profile, size, [&](const Job& job) {
    const auto text = body(job);
    if (job.rank() != 0) return;
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  close(ends[1]);
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  return text;
}

/// Where the tests run. On devices it is what it is on the CPU, unless operators round otherwise
/// there: such a test compares numbers of workers itself.
inline std::string text_of_rank_0(int size, const std::function<std::string(const Job&)>& body) {
  auto cpu = text_on(std::nullopt, size, body);
  const auto profile = test_device_profile();
  if (!profile) return cpu;
  auto text = text_on(profile, size, [&](const Job& job) {
    auto of_device = body(job);
    test_device::synchronize();
    const auto done = test_device::counters();
    EXPECT_GT(done.ran, 0) << "nothing ran on the device";
    EXPECT_EQ(done.unpinned, 0) << "copies that waited, though asked not to";
    return of_device + (done.own == 0 ? '=' : '~');
  });
  if (text.ends_with('=')) {
    EXPECT_EQ(text, cpu + '=') << "the bytes of the CPU";
  }
  if (!text.empty()) text.pop_back();
  return text;
}

/// Where factories make tensors: those of torch::tensor() and of loaders are the CPU's, as is what
/// batch norms count in.
inline torch::Tensor here(const torch::Tensor& tensor) {
  return tensor.to(torch::empty({0}).device());
}
inline void here(torch::nn::Module& module) { module.to(torch::empty({0}).device()); }

/// Hashes of models that expectations have seen in this process, one after another.
inline std::string& hashes_seen() {
  static std::string hashes;
  return hashes;
}

/// The same, of a body whose models are compared by what they were in expectations.
inline void on_workers(int size, const std::function<void(const Job&)>& body) {
  text_of_rank_0(size, [&](const Job& job) {
    body(job);
    return hashes_seen();
  });
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
  hashes_seen() += mine;
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
  hashes_seen() += parameters_sha256(a);
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
