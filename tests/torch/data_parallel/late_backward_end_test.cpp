// A backward that an exception has ended, of whose end is heard late: from another thread, or by
// the next call alone. On a device its thread keeps the list of final callbacks for a while; here a
// layer keeps the backward's task.

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "torch/gradients/running_backward.h"
#include "torch/training.h"

namespace tutti::test::late_backward_end_cases {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using Task = std::shared_ptr<torch::autograd::GraphTask>;

/// Calls a function in its backward.
struct Calls : torch::autograd::Function<Calls> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const std::function<void()>& call) {
    context->saved_data["call"] = reinterpret_cast<std::int64_t>(&call);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["call"].toInt()))();
    return {gradients[0], torch::Tensor()};
  }
};

/// Two layers, between which a function is called once the gradients of the second are there.
struct Net {
  torch::nn::Linear first{6, 8};
  torch::nn::Linear second{8, 3};
  torch::nn::Sequential all{first, second};

  torch::Tensor loss(const Batch& batch, std::int64_t begin, std::int64_t end,
                     const std::function<void()>* call = nullptr) {
    auto hidden = first->forward(batch.x.slice(0, begin, end)).tanh();
    if (call != nullptr) hidden = Calls::apply(hidden, *call);
    return torch::mse_loss(second->forward(hidden), batch.y.slice(0, begin, end));
  }
  /// A backward that throws; its task, whose callbacks nobody destroys before it.
  Task failed_backward(const Batch& batch, std::int64_t begin, std::int64_t end) {
    Task kept;
    const std::function<void()> call = [&] {
      kept = running_backward()->shared_from_this();
      throw std::runtime_error("no luck");
    };
    const auto step = loss(batch, begin, end, &call);
    EXPECT_THROW(step.backward(), std::runtime_error);
    return kept;
  }
};

/// This worker's two rows of each batch.
struct Rows {
  explicit Rows(const Job& job, std::uint64_t seed)
      : batch(2 * job.size(), seed), begin(2 * job.rank()), end(begin + 2) {}
  Batch batch;
  std::int64_t begin;
  std::int64_t end;
};

/// A step of all, against the gradients of all rows in this process.
void expect_good_step(const Job& job, Net& net, std::uint64_t seed,
                      const std::function<void()>* call = nullptr) {
  const Rows rows(job, seed);
  net.all->zero_grad();
  net.loss(rows.batch, rows.begin, rows.end, call).backward();
  const auto joined =
      torch::autograd::grad({net.loss(rows.batch, 0, 2 * job.size())}, net.all->parameters());
  for (std::size_t p = 0; p < joined.size(); ++p) {
    EXPECT_TRUE(torch::allclose(net.all->parameters()[p].grad(), joined[p], 1e-5, 1e-6)) << p;
  }
}

/// The step that fails on the last worker; its task there.
Task failed_step(const Job& job, Net& net, std::uint64_t seed) {
  const Rows rows(job, seed);
  net.all->zero_grad();
  if (job.rank() == job.size() - 1) return net.failed_backward(rows.batch, rows.begin, rows.end);
  EXPECT_THAT(text_of<PeerFailed>([&] { net.loss(rows.batch, rows.begin, rows.end).backward(); }),
              HasSubstr("its backward threw an exception"));
  return nullptr;
}

// promise: errors#in-a-training-loop
TEST(LateBackwardEnd, OthersHearOfItThoughTheWorkerMakesNoCall) {
  for (const int size : {2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(1);
      Net net;
      const Group group(job);
      const auto memory = group.allocate(64);
      const std::atomic_ref told(*reinterpret_cast<std::uint32_t*>(memory.block(0)));
      DataParallel parallel(group, *net.all);
      const auto others = static_cast<std::uint32_t>(job.size() - 1);
      for (std::uint32_t k = 0; k < 200; ++k) {
        const auto begin = steady_clock::now();
        auto task = failed_step(job, net, k);
        if (job.rank() != job.size() - 1) {
          // A second is promised; the machine that runs the tests may be busy.
          EXPECT_LT(steady_clock::now() - begin, seconds(10)) << k;
          ++told;
        } else {
          std::thread late;
          if (k % 2 == 0) late = std::thread([end = std::move(task)]() mutable { end.reset(); });
          task.reset();
          while (told < (k + 1) * others) {
            ASSERT_LT(steady_clock::now() - begin, seconds(30)) << k;
            std::this_thread::yield();
          }
          if (late.joinable()) late.join();
        }
        group.barrier();
      }
      expect_good_step(job, net, 1000);
    });
  }
}

TEST(LateBackwardEnd, TheNextCallTellsWhereNobodyHas) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(1);
      Net net;
      DataParallel parallel(job, *net.all);
      std::vector<Task> kept;
      const bool is_last = job.rank() == job.size() - 1;
      std::uint64_t seed = 0;
      // On the last worker each finds the step open; the others have had its end.
      const std::vector<std::function<void()>> calls = {
          [&] { expect_good_step(job, net, ++seed); },
          [&] {
            if (is_last) parallel.fail("no luck");
          },
          [&] { parallel.next_weight(1); },
          [&] {
            const Rows rows(job, ++seed);
            net.all->zero_grad();
            auto scope = parallel.accumulate({.micro_batches = 1});
            scope.micro_batch(1, [&] { return net.loss(rows.batch, rows.begin, rows.end); });
            scope.finish();
          },
          [&] { parallel.synchronize(); },
          [&] { EXPECT_EQ(parallel.mean(3.0), 3.0); },
          [&] { parallel.sync_buffers(); }};
      for (std::size_t k = 0; k < calls.size(); ++k) {
        SCOPED_TRACE(k);
        kept.push_back(failed_step(job, net, ++seed));
        calls[k]();
        expect_good_step(job, net, ++seed);
      }
      kept.clear();
      expect_good_step(job, net, ++seed);
      expect_equal_everywhere(parallel.group(), *net.all);
    });
  }
}

TEST(LateBackwardEnd, WordOfItInTheMidstOfALaterStepChangesNothing) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(1);
      Net net;
      DataParallel parallel(job, *net.all);
      for (std::uint64_t k = 0; k < 20; ++k) {
        auto task = failed_step(job, net, 2 * k);
        const std::function<void()> call = [&] {
          std::thread([end = std::move(task)]() mutable { end.reset(); }).join();
        };
        expect_good_step(job, net, 2 * k + 1, &call);
      }
    });
  }
}

TEST(LateBackwardEnd, OutlivesTheDataParallel) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      torch::manual_seed(1);
      Net net;
      const Group group(job);
      for (std::uint64_t k = 0; k < 20; ++k) {
        auto parallel = std::make_unique<DataParallel>(group, *net.all);
        auto task = failed_step(job, net, k);
        parallel.reset();
        parallel = std::make_unique<DataParallel>(group, *net.all);
        std::thread([end = std::move(task)]() mutable { end.reset(); }).join();
        expect_good_step(job, net, 100 + k);
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::late_backward_end_cases
