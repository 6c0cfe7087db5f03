// Sums by NCCL, for which a library stands in, of models on the test device.

#include <csignal>
#include <stdexcept>

#include "device_parallel/device_workers.h"
#include "sums/fast_workers.h"

namespace tutti::test::fast_device_cases {
namespace {

using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Net : Normed {
  torch::Tensor loss(std::uint64_t seed, std::int64_t begin, std::int64_t end, c10::Device where) {
    const Batch batch(12, seed);
    const auto hidden = norm(first(batch.x.slice(0, begin, end).to(where)));
    return torch::mse_loss(second(torch::tanh(hidden)), batch.y.slice(0, begin, end).to(where));
  }
};

std::shared_ptr<SumEngine> stand_in(const Group& group, c10::Device where) {
  return nccl_engine(group, where, TUTTI_STAND_IN_NCCL);
}

DataParallelOptions fast_options(std::shared_ptr<SumEngine> engine) {
  DataParallelOptions options;
  options.name = "fast";
  options.fusion = 60;
  options.first_fusion = 10;
  options.sum = Sum::fast;
  options.engine = std::move(engine);
  return options;
}

void expect_equal_gradients(const Net& exact, const Net& fast, bool bytes) {
  for (std::size_t p = 0; p < exact.parameters().size(); ++p) {
    const auto& a = exact.parameters()[p].grad();
    const auto& b = fast.parameters()[p].grad();
    ASSERT_EQ(a.defined(), b.defined()) << p;
    if (!a.defined()) continue;
    EXPECT_TRUE(bytes ? a.cpu().equal(b.cpu()) : torch::allclose(a.cpu(), b.cpu(), 1e-4, 1e-5))
        << p;
  }
}

/// Steps of the same model by both sums; some have micro-batches, weights, or are dropped by one.
void train(const Job& job) {
  const auto where = local_device(job);
  const Group group(job, "sums");
  Net one;
  Net other;
  one.to(where);
  other.to(where);
  DataParallel exact(job, one, {.name = "exact"});
  DataParallel fast(group, other, fast_options(stand_in(group, where)));
  copy_parameters(one, other);
  const auto before = test_device::counters();
  const auto [begin, end] = share_of(12, job.rank(), job.size());
  auto sgd = momentum_and_decay(one.parameters());
  auto other_sgd = momentum_and_decay(other.parameters());
  const void* at = nullptr;
  for (std::uint64_t step = 1; step <= 8; ++step) {
    const auto run = [&, begin = begin, end = end](DataParallel& parallel, Net& net) {
      net.zero_grad(step % 3 != 0);
      if (step == 4) {
        auto scope = parallel.accumulate();
        for (auto row = begin; row + 2 <= end; row += 2) {
          scope.micro_batch(1, [&] { return net.loss(step, row, row + 2, where); });
        }
        return scope.finish();
      }
      if (step == 5) parallel.next_weight(job.rank() == 0 ? 3 : 0.5);
      if (step == 6 && job.size() > 1 && job.rank() == 1) return parallel.synchronize(0);
      net.loss(step, begin, end, where).backward();
    };
    run(exact, one);
    run(fast, other);
    expect_equal_gradients(one, other, job.size() <= 2 && step < 4);
    EXPECT_FALSE(other.never->weight.grad().defined());
    if (step == 1) at = other.first->weight.grad().data_ptr();
    EXPECT_EQ(other.first->weight.grad().data_ptr(), at) << step;
    sgd.step();
    other_sgd.step();
    // Sums of one step are compared: what rounding makes of parameters over steps is no part of it.
    copy_parameters(one, other);
    if (job.size() == 1 || step % 2 == 0) continue;
    // One worker drops a step, early or in its backward.
    other.zero_grad();
    if (job.rank() == 0) {
      if (step % 4 == 1) {
        fast.fail("a bad batch");
      } else {
        auto hidden = torch::tanh(other.first(torch::ones({2, 6}).to(where)));
        hidden.register_hook(
            [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("a bad batch"); });
        EXPECT_THROW(other.second(hidden).sum().backward(), std::runtime_error);
      }
    } else {
      EXPECT_THROW(other.loss(step, begin, end, where).backward(), PeerFailed);
    }
  }
  EXPECT_EQ(test_device::counters().unpinned, before.unpinned);
  expect_equal_everywhere(group, other);
}

// promise: gpu#which-sum, sum_engine.h#nccl_engine
TEST(FastDevice, StepsHaveTheSumsOfTheOthersInBothProfiles) {
  for (const int size : {1, 2, 3}) {
    for (const auto held : kProfiles) on_device_workers(size, held, train);
  }
}

TEST(FastDevice, APeerThatIsKilledIsLostAndNothingWaitsForIt) {
  for (const auto held : kProfiles) {
    const auto outcome = outcome_of_device_workers(2, held, [&](const Job& job) {
      const auto where = local_device(job);
      const Group group(job, "sums");
      Net net;
      net.to(where);
      const auto engine = std::make_shared<WatchedEngine>(stand_in(group, where));
      {
        DataParallel parallel(group, net, fast_options(engine));
        net.loss(1, 0, 6, where).backward();
        net.zero_grad();
        if (job.rank() == 1) {
          engine->on_begin = [](const torch::Tensor&) { std::raise(SIGKILL); };
        }
        try {
          net.loss(2, 0, 6, where).backward();
          ADD_FAILURE() << "a step without rank 1";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 1);
        }
      }
      EXPECT_EQ(engine->aborted, 1);
      test_device::synchronize();  // nothing on the device waits for rank 1
    });
    EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL) << outcome.describe();
  }
}

TEST(FastDevice, NcclThatIsNotThereIsNamedOnAllWorkers) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    const Group group(job, "sums");
    const auto where = local_device(job);
    const std::string library = job.rank() == 1 ? "libno_nccl.so.2" : TUTTI_STAND_IN_NCCL;
    EXPECT_THAT(text_of<Unsupported>([&] { nccl_engine(group, where, library); }),
                AllOf(HasSubstr("rank 1: NCCL: libno_nccl.so.2"), HasSubstr("LD_LIBRARY_PATH")));
    EXPECT_THAT(text_of<Unsupported>([&] { nccl_engine(group, where, "libc.so.6"); }),
                HasSubstr("libc.so.6 has no nccl"));
    EXPECT_THROW(nccl_engine(group, torch::kCPU), InvalidArgument);
    Net net;
    net.to(where);
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { DataParallel parallel(job, net, {.sum = Sum::fast}); }),
        HasSubstr("needs an engine"));
  });
}

}  // namespace
}  // namespace tutti::test::fast_device_cases
