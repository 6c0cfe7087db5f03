#pragma once

// Workers whose models are on test devices, of which there are two: local_device(job). They are
// processes of their own, which register them once they have been forked.

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "device/device_fixture.h"
#include "torch/training.h"

namespace tutti::test {

using test_device::bytes_of;
using test_device::kProfiles;

/// What a model is, and its loss of some rows of a batch that all workers know.
struct Numbers : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 17))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(17, 3))};
  torch::nn::Linear never{register_module("never", torch::nn::Linear(3, 3))};
  torch::Tensor loss(std::uint64_t seed, std::int64_t begin, std::int64_t end, c10::Device where) {
    const Batch batch(12, seed);
    const auto x = batch.x.slice(0, begin, end).to(where);
    return torch::mse_loss(second(torch::tanh(first(x))), batch.y.slice(0, begin, end).to(where));
  }
};

/// Its layers and a batch norm; the loss is whose model it is.
struct Normed : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 17))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(17))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(17, 3))};
  torch::nn::Linear never{register_module("never", torch::nn::Linear(3, 3))};
};

/// Bytes of parameters, buffers and of all gradients of the last step.
template <class Model>
std::string state_of(const Model& model) {
  std::string bytes;
  for (const auto& parameter : model.parameters()) {
    bytes += bytes_of(parameter);
    bytes += parameter.grad().defined() ? bytes_of(parameter.grad()) : "none";
  }
  for (const auto& buffer : model.buffers()) bytes += bytes_of(buffer);
  return bytes;
}

/// How workers end whose devices have that profile: one intra-op thread each.
inline ProcessOutcome outcome_of_device_workers(int size, test_device::Held held,
                                                const std::function<void(const Job&)>& body,
                                                const ProcessOptions& options = {}) {
  return run_process_ranks(
      size,
      [&](const Job& job) {
        at::set_num_threads(1);
        test_device::register_device(2);
        test_device::hold(held);
        body(job);
      },
      options);
}

inline std::string text_on_device_rank_0(int size, test_device::Held held,
                                         const std::function<std::string(const Job&)>& body) {
  return text_of_rank_0(size, [&](const Job& job) {
    test_device::register_device(2);
    test_device::hold(held);
    auto text = body(job);
    test_device::synchronize();
    return text;
  });
}

inline void on_device_workers(int size, test_device::Held held,
                              const std::function<void(const Job&)>& body) {
  text_on_device_rank_0(size, held, [&](const Job& job) {
    body(job);
    return std::string();
  });
}

/// What `program` returns on rank 0 is the same on the CPU and, in each profile, on devices, on 1,
/// 2 and 3 workers. Nothing is copied from or to memory that is not pinned.
inline void expect_bytes_of_the_cpu(
    const std::function<std::string(const Job&, c10::Device where)>& program) {
  for (const int size : {1, 2, 3}) {
    const auto cpu =
        text_of_rank_0(size, [&](const Job& job) { return program(job, torch::kCPU); });
    EXPECT_FALSE(cpu.empty());
    for (const auto held : kProfiles) {
      const auto device = text_on_device_rank_0(size, held, [&](const Job& job) {
        const auto before = test_device::counters();
        auto bytes = program(job, local_device(job));
        EXPECT_EQ(test_device::counters().unpinned, before.unpinned);
        return bytes;
      });
      EXPECT_TRUE(device == cpu) << size << " workers, profile " << static_cast<int>(held);
    }
  }
}

}  // namespace tutti::test
