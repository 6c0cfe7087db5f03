// Steps of a DataParallel whose gradients Gloo adds up, beside the same steps by Tutti's own sum.

#include <stdexcept>

#include "sums/fast_workers.h"

namespace tutti::test::fast_steps_cases {
namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(6, 17))};
  nn::Linear second{register_module("second", nn::Linear(17, 3))};
  nn::Linear never{register_module("never", nn::Linear(3, 3))};
  torch::Tensor loss(std::uint64_t seed, std::int64_t begin, std::int64_t end) {
    const Batch batch(12, seed);
    return torch::mse_loss(second(torch::tanh(first(batch.x.slice(0, begin, end)))),
                           batch.y.slice(0, begin, end));
  }
};

/// The same model twice: one of them has an engine.
struct Both {
  Both(const Job& job, const MakeEngine& engine, DataParallelOptions options = {})
      : exact(job, one, named(options, "exact", {})),
        fast(job, other, named(options, "fast", engine(job))) {
    copy_parameters(one, other);
  }
  static DataParallelOptions named(DataParallelOptions options, const char* name,
                                   std::shared_ptr<SumEngine> engine) {
    options.name = name;
    options.fusion = 60;  // three buckets
    options.first_fusion = 10;
    if (engine) options.sum = Sum::fast;
    options.engine = std::move(engine);
    return options;
  }
  /// Runs a step of each.
  void step(const std::function<void(DataParallel&, Net&)>& run) {
    run(exact, one);
    run(fast, other);
  }
  void expect_equal_gradients(bool bytes) const {
    const auto left = one.named_parameters();
    const auto right = other.named_parameters();
    for (std::size_t p = 0; p < left.size(); ++p) {
      const auto a = left[p].value().grad();
      const auto b = right[p].value().grad();
      ASSERT_EQ(a.defined(), b.defined()) << left[p].key();
      if (!a.defined()) continue;
      EXPECT_TRUE(bytes ? a.equal(b) : torch::allclose(a, b, 1e-5, 1e-6)) << left[p].key();
    }
    EXPECT_EQ(exact.touched(), fast.touched());
    EXPECT_EQ(exact.report().weight, fast.report().weight);
    expect_equal_everywhere(fast.group(), other);
  }
  void update() {
    const torch::NoGradGuard no_grad;
    for (const auto& model : {&one, &other}) {
      for (const auto& parameter : model->parameters()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.125);
      }
    }
  }

  Net one;
  Net other;
  DataParallel exact;
  DataParallel fast;
};

std::uint64_t bytes_of(const TrafficReport& report) {
  std::uint64_t bytes = 0;
  for (const auto& bucket : report.all_steps) bytes += bucket.bytes;
  return bytes;
}

class FastSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gloo()) GTEST_SKIP() << "no Gloo in this build: libgloo-dev is missing";
  }
};

/// Every worker's share of twelve rows.
auto share(const Job& job) { return share_of(12, job.rank(), job.size()); }

// promise: gpu#which-sum, data_parallel.h#Sum
TEST_F(FastSteps, HaveTheBytesOfTheOthersWhereTwoAreAdded) {
  for (const int size : {1, 2}) {
    on_gloo_workers(size, [](const Job& job, const MakeEngine& engine) {
      Both both(job, engine);
      for (std::uint64_t step = 1; step <= 4; ++step) {
        both.step([&](DataParallel&, Net& net) {
          net.zero_grad();
          net.loss(step, share(job).first, share(job).second).backward();
        });
        both.expect_equal_gradients(true);
        EXPECT_FALSE(both.other.never->weight.grad().defined());
        both.update();
      }
      EXPECT_EQ(both.fast.report().buckets, 3);
      EXPECT_EQ(bytes_of(both.fast.traffic()), bytes_of(both.exact.traffic()));
      EXPECT_EQ(both.fast.traffic().steps, 4);
      EXPECT_EQ(both.fast.report().dense_bytes, 185 * sizeof(float));
      EXPECT_EQ(both.fast.report().max_sent_bytes, 173 * sizeof(float));
    });
  }
}

TEST_F(FastSteps, AreOfTheSameWeightsUpToRounding) {
  for (const auto divide : {Divide::by_weight, Divide::by_contributors, Divide::not_at_all}) {
    on_gloo_workers(3, [&](const Job& job, const MakeEngine& engine) {
      Both both(job, engine, {.divide = divide});
      const double weights[] = {3, 0.5, 0};  // the last one's gradients are none
      for (std::uint64_t step = 1; step <= 4; ++step) {
        const auto rank = (static_cast<std::uint64_t>(job.rank()) + step) % 3;
        both.step([&](DataParallel& parallel, Net& net) {
          net.zero_grad();
          parallel.next_weight(weights[rank]);
          auto loss = net.loss(step, share(job).first, share(job).second);
          if (rank == 2) loss = loss / 0.0;
          // One worker's loss has nothing of a layer.
          if (rank == 1) loss = net.first(Batch(2, step).x).square().sum();
          loss.backward();
        });
        both.expect_equal_gradients(false);
        both.update();
      }
    });
  }
}

TEST_F(FastSteps, OfNumbersAreDividedAsOthersAre) {
  on_gloo_workers(3, [](const Job& job, const MakeEngine& engine) {
    const auto scale = torch::ones({}, torch::requires_grad());
    DataParallel parallel(
        Group(job), {{"scale", scale}},
        {.divide = Divide::by_contributors, .sum = Sum::fast, .engine = engine(job)});
    for (const double weight : {1, 2}) {
      scale.mutable_grad().reset();
      parallel.next_weight(weight);
      (scale * (job.rank() + 1)).backward();
      EXPECT_FLOAT_EQ(scale.grad().item<float>(), 2);
    }
  });
}

// promise: data_parallel#complex-parameters
TEST_F(FastSteps, AddTheRealNumbersOfComplexGradients) {
  for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
    on_gloo_workers(3, [&](const Job& job, const MakeEngine& engine) {
      const auto value = torch::view_as_complex(torch::ones({4, 3, 2})).to(type).t();
      const auto parameter = value.detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
      const auto beside = torch::ones({5}, torch::requires_grad());
      DataParallel parallel(
          Group(job), {{"parameter", parameter}, {"beside", beside}},
          {.divide = Divide::not_at_all, .sum = Sum::fast, .engine = engine(job)});
      for (const double step : {1, 2}) {
        parameter.mutable_grad().reset();
        beside.mutable_grad().reset();
        const c10::complex<double> by(step + job.rank(), step * job.rank());
        (torch::real((parameter * by).sum()) + beside.sum()).backward();
        const auto expected =
            torch::full({3, 4}, c10::complex<double>(3 * step + 3, -3 * step), type);
        EXPECT_TRUE(torch::equal(parameter.grad(), expected));
        EXPECT_EQ(parameter.grad().strides(), parameter.strides());
        EXPECT_TRUE(torch::equal(beside.grad(), torch::full({5}, 3.0)));
      }
    });
  }
}

TEST_F(FastSteps, OfMicroBatchesAreAddedOnceForAll) {
  for (const int size : {1, 2, 3}) {
    on_gloo_workers(size, [](const Job& job, const MakeEngine& engine) {
      Both both(job, engine);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        const auto [begin, end] = share_of(6, job.rank(), job.size());
        both.step([&, begin = begin, end = end](DataParallel& parallel, Net& net) {
          net.zero_grad();
          auto scope = parallel.accumulate();
          for (auto leaf = begin; leaf < end; ++leaf) {
            scope.micro_batch(leaf % 2 == 0 ? 1 : 2.5,
                              [&] { return net.loss(step, 2 * leaf, 2 * leaf + 2); });
          }
          scope.finish();
        });
        both.expect_equal_gradients(false);
        both.update();
      }
      EXPECT_EQ(both.fast.report().leaves, 6);
    });
  }
}

TEST_F(FastSteps, ThatOneWorkerDropsLeaveTheNextOnesAlone) {
  for (const int size : {2, 3}) {
    on_gloo_workers(size, [](const Job& job, const MakeEngine& engine) {
      Both both(job, engine);
      const auto run = [&](std::uint64_t step) {
        both.step([&](DataParallel&, Net& net) {
          net.zero_grad();
          net.loss(step, share(job).first, share(job).second).backward();
        });
        both.expect_equal_gradients(job.size() == 2);
        both.update();
      };
      auto& net = both.other;
      for (std::uint64_t round = 1; round <= 4; ++round) {
        const auto bad = static_cast<int>(round) % job.size();
        // Before a backward, in the midst of one, and after a micro-batch.
        for (const int way : {0, 1, 2}) {
          net.zero_grad();
          const auto step = [&] {
            if (way == 2) {
              auto scope = both.fast.accumulate();
              scope.micro_batch(1, [&] { return net.loss(9, 0, 3); });
              if (job.rank() == bad) throw std::runtime_error("a bad batch");
              return scope.finish();
            }
            if (job.rank() == bad && way == 0) throw std::runtime_error("a bad batch");
            auto hidden = torch::tanh(net.first(Batch(3, 7).x));
            if (job.rank() == bad) {
              hidden.register_hook([](const torch::Tensor&) -> torch::Tensor {
                throw std::runtime_error("a bad batch");
              });
            }
            net.second(hidden).sum().backward();
          };
          if (job.rank() == bad) {
            EXPECT_THROW(step(), std::runtime_error);
            if (way == 0) both.fast.fail("a bad batch");
          } else {
            EXPECT_THROW(step(), PeerFailed) << way;
          }
          if (way == 1) run(10 * round + static_cast<std::uint64_t>(way));
        }
        run(10 * round + 5);
      }
    });
  }
}

TEST_F(FastSteps, GoOnWithoutWorkersThatHaveNoMoreData) {
  for (const int size : {2, 3}) {
    on_gloo_workers(size, [](const Job& job, const MakeEngine& engine) {
      Both both(job, engine);
      const auto run = [&](DataParallel& parallel, Net& net) {
        const auto update = [&net] {
          const torch::NoGradGuard no_grad;
          for (const auto& parameter : net.parameters()) {
            if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.125);
          }
        };
        const std::uint64_t steps = 3 + static_cast<std::uint64_t>(job.rank());
        for (std::uint64_t step = 1; step <= steps; ++step) {
          net.zero_grad();
          if (step == 2 && job.rank() == 1) {
            parallel.synchronize();
          } else {
            net.loss(step, share(job).first, share(job).second).backward();
          }
          update();
        }
        EXPECT_EQ(parallel.join(update), job.size() - 1 - job.rank());
      };
      run(both.exact, both.one);
      run(both.fast, both.other);
      for (std::size_t p = 0; p < both.one.parameters().size(); ++p) {
        EXPECT_TRUE(
            torch::allclose(both.one.parameters()[p], both.other.parameters()[p], 1e-5, 1e-6));
      }
      expect_equal_everywhere(both.fast.group(), both.other);
    });
  }
}

// Sums of 16-bit gradients are float32 ones, rounded once.
TEST_F(FastSteps, AddNarrowGradientsInFloat32) {
  on_gloo_workers(3, [](const Job& job, const MakeEngine& engine) {
    nn::Linear narrow(nn::LinearOptions(1, 1).bias(false));
    nn::Linear wide(nn::LinearOptions(1, 1).bias(false));
    nn::Sequential model(narrow, wide);
    narrow->to(torch::kBFloat16);
    wide->to(torch::kFloat64);
    DataParallel parallel(job, *model,
                          {.divide = Divide::not_at_all, .sum = Sum::fast, .engine = engine(job)});
    // 256 + 1 + 1 is 258 in bfloat16 only where it is not rounded after the first addition.
    const double own[] = {256, 1, 1};
    (narrow->weight * own[job.rank()]).sum().backward();
    EXPECT_EQ(narrow->weight.grad().item<double>(), 258);
    model->zero_grad();
    (wide->weight * (1 + 1e-12 * own[job.rank()])).sum().backward();
    EXPECT_NEAR(wide->weight.grad().item<double>(), 3 + 258e-12, 1e-14);
    EXPECT_EQ(wide->weight.grad().scalar_type(), torch::kFloat64);
  });
}

TEST_F(FastSteps, PutGradientsWhereTheProgramHasThem) {
  on_gloo_workers(2, [](const Job& job, const MakeEngine& engine) {
    Both both(job, engine);
    std::vector<torch::Tensor> kept[2];
    const void* at = nullptr;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      both.step([&](DataParallel&, Net& net) {
        net.zero_grad(step % 2 == 0);
        if (step == 4)
          net.second->bias.mutable_grad() =
              torch::full({3}, 0.25F + static_cast<float>(job.rank()));
        net.loss(step, share(job).first, share(job).second).backward();
      });
      both.expect_equal_gradients(true);
      if (step == 3) {
        kept[0].push_back(both.one.first->weight.grad());
        kept[1].push_back(both.other.first->weight.grad());
      }
      if (step == 5) at = both.other.first->weight.grad().data_ptr();
      if (step < 6) continue;
      EXPECT_EQ(both.other.first->weight.grad().data_ptr(), at);
    }
    EXPECT_TRUE(kept[0][0].equal(kept[1][0]));
    EXPECT_FALSE(kept[0][0].equal(both.one.first->weight.grad()));
  });
}

TEST_F(FastSteps, BeginSumsWhileBackwardRuns) {
  on_gloo_workers(2, [](const Job& job, const MakeEngine& engine) {
    Net net;
    const auto watched = std::make_shared<WatchedEngine>(engine(job));
    DataParallel parallel(job, net, Both::named({}, "model", watched));
    for (std::uint64_t step = 1; step <= 2; ++step) {
      net.zero_grad();
      const auto before = watched->begun;
      auto hidden = net.first(Batch(3, step).x);
      hidden.register_hook([&](const torch::Tensor& gradient) {
        EXPECT_GT(watched->begun, before) << "the last layer's sums";
        return gradient;
      });
      // All layers are used, so that every bucket is complete.
      (net.second(hidden).sum() + net.never(torch::ones({1, 3})).sum()).backward();
      EXPECT_EQ(watched->begun, before + 3);
    }
    EXPECT_EQ(watched->aborted, 0);
  });
}

}  // namespace
}  // namespace tutti::test::fast_steps_cases
