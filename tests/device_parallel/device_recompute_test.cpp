// Segments that run again in backward, on a device: the plain run's bytes and generators, whichever
// streams are late.

#include <ATen/autocast_mode.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device_parallel/device_workers.h"
#include "tutti/recompute.h"
#include "tutti/recompute_sequential.h"

namespace tutti::test::device_recompute_cases {
namespace {

using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

/// In each profile, on a device of a single worker.
void on_a_device(const std::function<void(c10::Device)>& body) {
  for (const auto held : kProfiles) {
    on_device_workers(1, held, [&](const Job& job) { body(local_device(job)); });
  }
}

struct NetImpl : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 9))};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(9))};
  nn::Linear last{register_module("last", nn::Linear(9, 3))};
  /// Its path is chosen by its data.
  std::pair<torch::Tensor, torch::Tensor> inner(const torch::Tensor& x,
                                                const torch::Tensor& state) {
    auto y = torch::dropout(norm(first(x)) + state, 0.25, true).tanh();
    if (y.sum().item<float>() > 0) y = y * 2;
    return {last(y), y.detach().mean(0)};
  }
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                  const torch::Tensor& state, bool again) {
    if (!again) return inner(x, state);
    return recompute(
        [this](const torch::Tensor& y, const torch::Tensor& before) { return inner(y, before); }, x,
        state);
  }
};
TORCH_MODULE(Net);

std::string state_of(const nn::Module& model) {
  std::string bytes;
  for (const auto& parameter : model.parameters()) {
    bytes += bytes_of(parameter) + bytes_of(parameter.grad());
  }
  for (const auto& buffer : model.buffers()) bytes += bytes_of(buffer);
  return bytes;
}

/// What one step leaves behind the next one reads: the state, and the generators of all.
std::string trained(const Job& job, c10::Device where, bool again) {
  torch::manual_seed(1);
  Net net;
  net->to(where);
  DataParallel parallel(job, *net);
  auto sgd = momentum_and_decay(net->parameters());
  auto state = torch::zeros({9}, torch::TensorOptions(where));
  torch::manual_seed(static_cast<std::uint64_t>(job.rank()) + 7);
  const auto [begin, end] = share_of(6, job.rank(), job.size());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    net->zero_grad(step % 2 == 0);
    auto scope = parallel.accumulate({.micro_batches = end - begin, .seed = 3});
    for (auto leaf = begin; leaf < end; ++leaf) {
      scope.micro_batch(static_cast<double>(leaf + 1), [&, leaf = leaf] {
        const Batch batch(12, step);
        const auto x = batch.x.slice(0, 2 * leaf, 2 * leaf + 2).to(where);
        const auto [y, next] = net->forward(x, state, again);
        state = next;
        return y.square().mean();
      });
      // Otherwise it would be that of another one's micro-batches.
      state = torch::full({9}, static_cast<float>(step), torch::TensorOptions(where));
    }
    scope.finish();
    sgd.step();
  }
  return state_of(*net) + bytes_of(torch::rand({2}, torch::TensorOptions(where)));
}

// promise: gpu#what-is-exact
TEST(DeviceRecompute, OfMicroBatchesHasTheBytesOfThePlainRunOnAnyNumberOfWorkers) {
  const auto program = [](bool again) {
    return [again](const Job& job, c10::Device where) { return trained(job, where, again); };
  };
  expect_bytes_of_the_cpu(program(true));
  for (const int size : {1, 2, 3}) {
    for (const auto held : kProfiles) {
      const auto of = [&](bool again) {
        return text_on_device_rank_0(
            size, held, [&](const Job& job) { return trained(job, local_device(job), again); });
      };
      EXPECT_TRUE(of(true) == of(false)) << size;
    }
  }
}

/// Statistics of all samples within the segment, and losses of different weights; where the
/// segment's result is, there is the loss.
std::string normalised(const Job& job, bool again, bool ends_on_the_cpu) {
  const auto where = local_device(job);
  torch::manual_seed(1);
  const Group group(job, "norm");
  nn::Linear first(6, 4);
  SyncBatchNorm norm(group, nn::BatchNormOptions(4).affine(false));
  nn::Linear last(4, 3);
  nn::Sequential model(first, norm, last);
  model->to(where);
  DataParallel parallel(job, *model);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    model->zero_grad();
    const Batch batch(11, step);
    const auto [begin, end] = share_of(11, job.rank(), job.size());
    parallel.next_weight(static_cast<double>(end - begin));
    const auto segment = [&](const torch::Tensor& x) {
      const auto y = norm->forward(x);
      const auto all = ops::all_reduce(group, y.square().mean(0), Reduction::sum);
      const auto z = y * (all + 1);
      return ends_on_the_cpu ? z.cpu() : z;
    };
    const auto x = first->forward(batch.x.slice(0, begin, end).to(where));
    const auto y = (again ? recompute(segment, x) : segment(x)).to(where);
    last->forward(y).pow(3).mean().backward();
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) parameter.sub_(parameter.grad() * 0.125);
  }
  return state_of(*model);
}

TEST(DeviceRecompute, OfStatisticsOfAllSamplesAndWeightsHasTheBytesOfThePlainRun) {
  for (const int size : {1, 2, 3}) {
    for (const auto held : kProfiles) {
      for (const bool ends_on_the_cpu : {false, true}) {
        const auto of = [&](bool again) {
          return text_on_device_rank_0(
              size, held, [&](const Job& job) { return normalised(job, again, ends_on_the_cpu); });
        };
        EXPECT_TRUE(of(true) == of(false)) << size << " " << ends_on_the_cpu;
      }
    }
  }
}

// promise: recompute.h#recompute
TEST(DeviceRecompute, LeavesGeneratorsOfTheDeviceAndOfTheCpuWhereThePlainRunDoes) {
  on_a_device([](c10::Device where) {
    const auto x = Batch(5, 1).x;
    const auto of = [&](bool again, bool enters_on_the_cpu) {
      torch::manual_seed(5);
      const auto segment = [&](const torch::Tensor& z) {
        const auto noise = torch::rand({6}).to(where);
        return torch::dropout(z.to(where) + noise, 0.5, true).sin();
      };
      const auto own = (enters_on_the_cpu ? x.clone() : x.to(where)).requires_grad_();
      const auto y = again ? recompute(segment, own) : segment(own);
      auto bytes = bytes_of(y) + bytes_of(torch::rand({3}, torch::TensorOptions(where)));
      y.square().sum().backward();
      return bytes + bytes_of(own.grad()) + bytes_of(torch::rand({3})) +
             bytes_of(torch::rand({3}, torch::TensorOptions(where)));
    };
    for (const bool on_the_cpu : {false, true}) {
      EXPECT_TRUE(of(true, on_the_cpu) == of(false, on_the_cpu)) << on_the_cpu;
    }
  });
}

// promise: recompute.h#generators
TEST(DeviceRecompute, ADrawFromAGeneratorOfTheDeviceThatIsNotGivenIsFound) {
  on_a_device([](c10::Device where) {
    auto own = at::globalContext()
                   .getAcceleratorHooksInterface(where.type())
                   .getNewGenerator(where.index());
    const auto of = [&](std::vector<at::Generator> named) {
      own.set_current_seed(5);
      const auto x = Batch(5, 1).x.to(where).requires_grad_();
      recompute(
          {.name = "noisy", .generators = std::move(named)},
          [&](const torch::Tensor& z) {
            return z * torch::rand({6}, own, torch::TensorOptions(where));
          },
          x)
          .sum()
          .backward();
      return x.grad();
    };
    const auto found = of({own});
    own.set_current_seed(5);
    EXPECT_TRUE(found[0].equal(torch::rand({6}, own, torch::TensorOptions(where))));
    EXPECT_THAT(text_of<InvalidArgument>([&] { of({}); }),
                AllOf(HasSubstr("recompute \"noisy\": run again, the segment gives another result"),
                      HasSubstr("draws from a generator that is not among the options")));
  });
}

/// A segment whose second result is `first`, and in its second run `second`.
std::string refusal(const torch::Tensor& first, const torch::Tensor& second) {
  const auto x = torch::ones({2}, first.options().dtype(torch::kFloat)).requires_grad_();
  int calls = 0;
  const auto results = recompute_list({.name = "block"},
                                      [&](const TensorList& in) {
                                        return TensorList{in[0] * 2, ++calls == 1 ? first : second};
                                      },
                                      {x});
  return text_of<InvalidArgument>([&] { results[0].sum().backward(); });
}

// promise: recompute.h#recompute
TEST(DeviceRecompute, ResultsAreComparedByTheirBytes) {
  on_a_device([](c10::Device where) {
    const auto on = torch::TensorOptions(where);
    const auto other = [&](const torch::Tensor& tensor, auto change) {
      auto changed = tensor.clone();
      change(changed);
      return changed;
    };
    const auto expect_found = [](const torch::Tensor& first, const torch::Tensor& second) {
      EXPECT_EQ(refusal(first, first.clone()), "") << first.scalar_type();
      EXPECT_THAT(refusal(first, second), HasSubstr("gives another result 1"))
          << first.scalar_type();
    };
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
      const auto zeros = torch::zeros({3, 5}, on.dtype(type));
      expect_found(zeros, other(zeros, [](torch::Tensor& t) { t[1][2] = -0.0; }));
      expect_found(zeros, zeros.neg());
      expect_found(zeros.t(), zeros.t().neg());
      const auto numbers = torch::arange(15, on.dtype(type)).view({3, 5});
      expect_found(numbers, numbers.flip({0}));
      expect_found(numbers, other(numbers, [](torch::Tensor& t) { t[2][4] = 3; }));
      expect_found(numbers[0][1], numbers[0][2]);
    }
    const auto nan = torch::full({3}, 0x7fc00000, on.dtype(torch::kInt));
    expect_found(nan.view(torch::kFloat), (nan + 1).view(torch::kFloat));
    for (const auto type : {torch::kByte, torch::kShort, torch::kInt, torch::kLong}) {
      const auto numbers = torch::arange(7, on.dtype(type));
      expect_found(numbers, other(numbers, [](torch::Tensor& t) { t[6] = 5; }));
      expect_found(numbers, numbers.roll(1));
    }
    const auto truths = torch::arange(7, on).gt(3);
    expect_found(truths, truths.logical_not());
    expect_found(torch::ones({2}, on.dtype(torch::kComplexFloat)),
                 torch::zeros({2}, on.dtype(torch::kComplexFloat)));
    expect_found(torch::zeros({0, 3}, on), torch::zeros({3, 0}, on));
    // More than is hashed at a time, which ends in pieces.
    const auto large = torch::zeros({(1 << 18) + 3}, on);
    for (const std::int64_t at : {0, (1 << 18) - 1, (1 << 18), (1 << 18) + 2}) {
      expect_found(large, other(large, [&](torch::Tensor& t) { t[at] = 1; }));
    }
  });
}

// promise: gpu#what-it-costs
TEST(DeviceRecompute, NothingWaitsForTheDeviceInForward) {
  on_device_workers(1, Held::kDefaultStreams, [](const Job& job) {
    const auto where = local_device(job);
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(6, 9), nn::BatchNorm1d(9), nn::Tanh(), nn::Dropout(0.5));
    model->to(where);
    const auto x = Batch(5, 1).x.to(where).requires_grad_();
    recompute(model, x).sum().backward();  // a result that nobody has asked for yet
    const auto before = test_device::counters();
    const auto y = recompute(model, x);
    auto after = test_device::counters();
    EXPECT_EQ(after.ran, before.ran);
    const auto loss = y.square().sum();
    loss.backward();
    after = test_device::counters();
    EXPECT_GT(after.ran, before.ran);
    EXPECT_EQ(after.waited, before.waited);
    EXPECT_EQ(after.blocked, before.blocked);
  });
}

// promise: recompute.h#recompute
TEST(DeviceRecompute, RunsUnderTheSameAutocast) {
  on_a_device([](c10::Device where) {
    const auto type = where.type();
    const auto x = Batch(5, 1).x.to(where).requires_grad_();
    std::vector<torch::ScalarType> seen;
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, torch::kBFloat16);
    const auto y = recompute(
        [&](const torch::Tensor& z) {
          EXPECT_TRUE(at::autocast::is_autocast_enabled(type));
          seen.push_back(at::autocast::get_autocast_dtype(type));
          return z.to(seen.back());
        },
        x);
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::set_autocast_dtype(type, torch::kHalf);
    y.sum().backward();
    EXPECT_EQ(seen, std::vector<torch::ScalarType>(2, torch::kBFloat16));
    EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    EXPECT_EQ(at::autocast::get_autocast_dtype(type), torch::kHalf);
  });
}

// promise: recompute.h#recompute
TEST(DeviceRecompute, WhatABackwardInsideOfTheSegmentWritesIsWrittenOnce) {
  on_a_device([](c10::Device where) {
    const auto of = [&](bool again) {
      const auto on = torch::TensorOptions(where);
      const auto w = torch::ones({6}, on).requires_grad_();
      const auto outer = torch::ones({6}, on).requires_grad_();
      w.mutable_grad() = torch::zeros({6}, on);
      const auto segment = [&](const torch::Tensor& z) {
        (w * z.detach()).sum().backward();
        return z * outer;
      };
      for (std::uint64_t step = 1; step <= 2; ++step) {
        const auto x = Batch(1, step).x.to(where)[0];
        (again ? recompute(segment, x) : segment(x)).square().sum().backward();
      }
      return bytes_of(w.grad()) + bytes_of(outer.grad());
    };
    EXPECT_TRUE(of(true) == of(false));
  });
}

// What that adds to the graph comes from another thread than the segment's.
TEST(DeviceRecompute, AGradientPenaltyIsASegment) {
  on_a_device([](c10::Device where) {
    const auto on = torch::TensorOptions(where);
    const auto w = (torch::arange(36, on).view({6, 6}) / 36).requires_grad_();
    const auto slope_of = [&](const torch::Tensor& z) {
      const auto norm = z.mm(w).tanh().square().sum();
      return torch::autograd::grad({norm}, {z}, {}, true, /*create_graph=*/true)[0];
    };
    const auto x = Batch(4, 1).x.to(where);
    const auto of = [&](bool again) {
      const auto segment = [&](const torch::Tensor& z) {
        return slope_of(z.detach().requires_grad_()).square().sum() + z;
      };
      const auto own = x.clone().requires_grad_();
      const auto y = again ? recompute(segment, own) : segment(own);
      const auto gradients = torch::autograd::grad({y.square().sum()}, {own, w});
      return bytes_of(gradients[0]) + bytes_of(gradients[1]);
    };
    EXPECT_TRUE(of(true) == of(false));
    const auto scale = torch::ones({6}, on).requires_grad_();
    // Its graph has nodes of that thread alone.
    const auto outside = torch::autograd::grad({scale.square().sum()}, {scale}, {}, true, true)[0];
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { recompute([&](const torch::Tensor& z) { return z * outside; }, x); }),
                HasSubstr("the segment uses a tensor that was computed outside of it"));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  recompute(
                      [&](const torch::Tensor& z) {
                        return slope_of(z.detach().requires_grad_()) * outside;
                      },
                      x);
                }),
                HasSubstr("the segment uses a tensor that was computed outside of it"));
  });
}

/// The segment's memory is written and read under a stream of the program's, its gradients come
/// from another one.
TEST(DeviceRecompute, RunsAgainOnTheStreamThatItRanOn) {
  on_a_device([](c10::Device where) {
    const c10::impl::VirtualGuardImpl guard(where.type());
    const auto of = [&](bool again, bool ends_on_the_cpu) {
      torch::manual_seed(1);
      nn::BatchNorm1d norm(nn::BatchNormOptions(6));
      nn::Linear linear(6, 6);
      norm->to(where);
      linear->to(where);
      const auto stream = guard.getStreamFromGlobalPool(where);
      torch::Tensor y;
      {
        const c10::StreamGuard on(stream);
        const auto segment = [&](const torch::Tensor& z) {
          const auto normal = torch::dropout(norm(linear(z)), 0.5, true);
          return ends_on_the_cpu ? normal.cpu() : normal;
        };
        const auto x = Batch(5, 1).x.to(where);
        y = again ? recompute(segment, x) : segment(x);
      }
      c10::Event made(where.type());
      made.record(stream);
      guard.getStream(where).wait(made);
      y.square().sum().backward();
      const auto now = guard.getStream(where);
      stream.synchronize();
      EXPECT_EQ(guard.getStream(where), now);
      return bytes_of(linear->weight.grad()) + bytes_of(linear->bias.grad()) +
             bytes_of(norm->running_mean) + bytes_of(norm->num_batches_tracked);
    };
    for (const bool on_the_cpu : {false, true}) {
      EXPECT_TRUE(of(true, on_the_cpu) == of(false, on_the_cpu)) << on_the_cpu;
    }
  });
}

// Their backwards run in two threads.
TEST(DeviceRecompute, ASegmentOfTheCpuAndOneOfTheDeviceDoNotRunAgainAtATime) {
  on_a_device([](c10::Device where) {
    const auto of = [&](bool again) {
      torch::manual_seed(3);
      std::atomic<int> inside = 0;
      int calls = 0;
      const auto segment = [&](const torch::Tensor& z) {
        EXPECT_EQ(inside++, 0);
        if (++calls > 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const auto noise = torch::rand({6});
        --inside;
        return (z * noise.to(z.device())).sin();
      };
      const auto x = Batch(5, 1).x.requires_grad_();
      const auto z = Batch(5, 2).x.to(where).requires_grad_();
      const auto a = again ? recompute(segment, x) : segment(x);
      const auto b = again ? recompute(segment, z) : segment(z);
      torch::autograd::backward({a, b}, {torch::ones_like(a), torch::ones_like(b)});
      EXPECT_EQ(calls, again ? 4 : 2);
      return bytes_of(x.grad()) + bytes_of(z.grad()) + bytes_of(torch::rand({3}));
    };
    EXPECT_TRUE(of(true) == of(false));
  });
}

// On a device: its backward, and the segment in that, run in another thread than the one that
// waits.
TEST(DeviceRecompute, ASegmentMayTrainAnotherModelWithASegment) {
  on_a_device([](c10::Device where) {
    const auto of = [&](bool again) {
      torch::manual_seed(3);
      nn::Linear model(6, 6);
      model->to(where);
      const auto segment = [&](const torch::Tensor& z) {
        model->zero_grad();
        const auto x = z.detach().to(where);
        (again ? recompute(model, x) : model(x)).square().sum().backward();
        return (z * torch::rand({6}) * model->weight.grad().cpu().sum()).sin();
      };
      const auto x = Batch(5, 1).x.requires_grad_();
      const auto y = again ? recompute(segment, x) : segment(x);
      y.sum().backward();
      return bytes_of(x.grad()) + bytes_of(torch::rand({3}));
    };
    EXPECT_TRUE(of(true) == of(false));
  });
}

TEST(DeviceRecompute, AResultThatIsAnotherDropsTheStepOnAllWorkers) {
  for (const auto held : kProfiles) {
    on_device_workers(2, held, [](const Job& job) {
      const auto where = local_device(job);
      torch::manual_seed(1);
      nn::Linear first(6, 6);
      nn::Linear last(6, 3);
      nn::Sequential model(first, last);
      model->to(where);
      DataParallel parallel(job, *model);
      const auto step = [&](bool counts) {
        model->zero_grad();
        const auto calls = std::make_shared<int>(0);
        const auto noisy = [&, calls, counts](const torch::Tensor& x) {
          return first(x) * (counts ? ++*calls : 1);
        };
        last(recompute({.name = "noise"}, noisy, Batch(3, 1).x.to(where))).mean().backward();
      };
      const auto text = text_of([&] { step(job.rank() == 1); });
      EXPECT_THAT(text, HasSubstr(job.rank() == 1 ? "recompute \"noise\": run again, the segment "
                                                    "gives another result 0"
                                                  : "rank 1"));
      step(false);
      EXPECT_EQ(parallel.report().step, 2);
      expect_equal_everywhere(parallel.group(), *model);
    });
  }
}

// promise: recompute.h#recompute, recompute_sequential.h#fit
TEST(DeviceRecompute, TwoDevicesAndAMeasuredBudgetAreRefused) {
  on_a_device([](c10::Device where) {
    const auto x = Batch(5, 1).x.to(where).requires_grad_();
    const c10::Device far(where.type(), 1 - where.index());
    EXPECT_THAT(
        text_of<Unsupported>([&] {
          recompute(
              {.name = "wide"}, [&](const torch::Tensor& z) { return (z * 2).to(far).sin(); }, x);
        }),
        AllOf(HasSubstr("recompute \"wide\": the segment computes on "), HasSubstr(far.str()),
              HasSubstr(where.str()), HasSubstr("on one device besides the CPU, at most")));
    RecomputeSequential net(nn::Sequential(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6)));
    net->to(where);
    net->forward(x).sum().backward();
    EXPECT_THAT(text_of<Unsupported>([&] { net->fit(x, MemoryBudget::of_share(0.5)); }),
                AllOf(HasSubstr("recompute \"layers\": fit() of layers on " + where.str()),
                      HasSubstr("cut by the number of segments, or by set_segments()")));
  });
}

}  // namespace
}  // namespace tutti::test::device_recompute_cases
