// Workers whose models drift apart are named early, not after a hundred steps or never.

#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::diverging_workers_cases {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Steps of this worker's own data until somebody throws; what it says.
class Loop {
 public:
  explicit Loop(const Job& job, const DataParallelOptions& options = {})
      : job_(job), parallel(job, *model, options) {}

  void backward() {
    ++step;
    model->zero_grad();
    const Batch batch(5, static_cast<std::uint64_t>(step + 100 * job_.rank()));
    batch.loss(model, 0, 5).backward();
  }
  void update(double rate) {
    torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(rate)).step();
  }
  std::string steps(int last, const std::function<void(int step)>& after) {
    return text_of<Mismatch>([&] {
      while (step < last) {
        backward();
        after(step);
      }
    });
  }

 private:
  const Job& job_;

 public:
  torch::nn::Sequential model = mlp();
  DataParallel parallel;
  int step = 0;
};

TEST(DivergingWorkers, OneThatLeavesOutAnUpdateIsNamedInTheNextStep) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      Loop run(job, {.name = "net"});
      const auto text = run.steps(50, [&](int step) {
        if (step != 1 || job.rank() != workers - 1) run.update(0.1);
      });
      EXPECT_EQ(run.step, 2);
      EXPECT_THAT(text, AllOf(HasSubstr("step 2 of \"net\": parameter \"0.weight\""),
                              HasSubstr("of rank " + std::to_string(workers - 1)),
                              HasSubstr("differs from that of rank 0"),
                              HasSubstr("another learning rate")));
    });
  }
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, AnotherRateIsNamedInStep2) {
  on_workers(3, [](const Job& job) {
    Loop run(job);
    const auto text = run.steps(50, [&](int) { run.update(job.rank() == 2 ? 0.2 : 0.1); });
    EXPECT_EQ(run.step, 2);
    EXPECT_THAT(text, HasSubstr("\"0.weight\" of rank 2"));
  });
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, AChangeOfTheModelOnOneWorkerIsNamedInStep4) {
  on_workers(2, [](const Job& job) {
    Loop run(job);
    const auto text = run.steps(50, [&](int step) {
      run.update(0.1);
      const torch::NoGradGuard no_grad;
      if (step == 2 && job.rank() == 1) run.model->parameters()[3].add_(1e-3);
    });
    EXPECT_EQ(run.step, 4);
    EXPECT_THAT(text, HasSubstr("parameter \"2.bias\" of rank 1"));
  });
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, AChangeThatComesLaterIsNamedInStep64) {
  on_workers(2, [](const Job& job) {
    Loop run(job);
    const auto text = run.steps(99, [&](int step) {
      run.update(0.1);
      const torch::NoGradGuard no_grad;
      if (step == 33 && job.rank() == 1) run.model->parameters()[3].add_(1e-3);
    });
    EXPECT_EQ(run.step, 64);
    EXPECT_THAT(text, HasSubstr("parameter \"2.bias\" of rank 1"));
  });
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, OneThatComesBetweenIsNamedInTheNextMultiple) {
  on_workers(2, [](const Job& job) {
    Loop run(job, {.desync_check_every = 5});
    const auto text = run.steps(99, [&](int step) {
      if (step != 8 || job.rank() == 0) run.update(0.1);
    });
    EXPECT_EQ(run.step, 10);
    EXPECT_THAT(text, HasSubstr("parameter \"0.weight\" of rank 1"));
  });
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, WithDigestEvery0NobodyLooks) {
  on_workers(2, [](const Job& job) {
    Loop run(job, {.desync_check_every = 0});
    EXPECT_EQ(run.steps(10, [&](int) { run.update(0.1 * (1 + job.rank())); }), "");
    EXPECT_EQ(text_of<Mismatch>([&] { run.parallel.join([] {}); }), "");
  });
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, WhatWentWrongAfterTheLastComparisonIsNamedByDrain) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [](const Job& job) {
      Loop run(job);
      const int last = job.rank() == 0 ? 6 : 5;
      EXPECT_EQ(run.steps(last,
                          [&](int step) {
                            if (step != 5 || job.rank() != 1) run.update(0.1);
                          }),
                "");
      const auto text = text_of<Mismatch>([&] { run.parallel.join([&] { run.update(0.1); }); });
      EXPECT_THAT(text, HasSubstr("\"0.weight\" of rank 1 differs from that of rank 0"));
    });
  }
}

TEST(DivergingWorkers, DrainOfEqualWorkersSaysNothing) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    const LogCapture log;
    {
      Loop run(job);
      const int last = 3 + job.rank();
      EXPECT_EQ(run.steps(last, [&](int) { run.update(0.1); }), "");
      EXPECT_EQ(run.parallel.join([&] { run.update(0.1); }), 2 - job.rank());
      Group(job, "end").barrier();
    }
    EXPECT_EQ(log.count("warning: "), 0);
  });
}

/// They end in the order of their ranks: rank 1 is the first that can compare, and rank 2 does not
/// repeat it.
// promise: data_parallel.h#DataParallel
TEST(DivergingWorkers, AtTheEndOfTheObjectADifferenceIsLoggedOnceAndNobodyWaits) {
  for (const bool differ : {true, false}) {
    on_workers(3, [&](const Job& job) {
      const Group other(job, "other");
      const LogCapture log;
      {
        Loop run(job, {.name = "net"});
        EXPECT_EQ(run.steps(7,
                            [&](int step) {
                              if (!differ || step != 7 || job.rank() != 1) run.update(0.1);
                            }),
                  "");
        for (int ended = 0; ended < job.rank(); ++ended) other.barrier();
      }
      for (int ended = job.rank(); ended < 2; ++ended) other.barrier();
      EXPECT_EQ(log.count("\"net\" after step 7: parameter \"0.weight\" of rank 1 differs"),
                differ && job.rank() == 1 ? 1 : 0);
    });
  }
}

TEST(DivergingWorkers, AFunctionalEmbeddingThatRenormalisesIsFound) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto table = torch::randn({20, 3}).requires_grad_();
    DataParallel parallel(Group(job, "table"), {{"table", table}});
    int step = 0;
    const auto text = text_of<Mismatch>([&] {
      while (step < 20) {
        ++step;
        table.mutable_grad().reset();
        const auto rows = torch::arange(4) + 4 * job.rank() + step;
        torch::nn::functional::embedding(
            rows, table, torch::nn::functional::EmbeddingFuncOptions().max_norm(0.5))
            .square()
            .sum()
            .backward();
        const torch::NoGradGuard no_grad;
        table.sub_(table.grad(), 0.01);
      }
    });
    EXPECT_LE(step, 2);
    EXPECT_THAT(text, HasSubstr("parameter \"table\" of rank 1"));
  });
}

torch::nn::Sequential with_dropout() {
  return torch::nn::Sequential(torch::nn::Linear(6, 17), torch::nn::Dropout(0.5),
                               torch::nn::Linear(17, 3));
}

// promise: data_parallel.h#desync_check_every
TEST(DivergingWorkers, AModuleThatOneWorkerLeftInEvalIsNamed) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = with_dropout();
      DataParallel parallel(job, *model, {.name = "net"});
      int step = 0;
      const auto text = text_of<Mismatch>([&] {
        while (step < 20) {
          ++step;
          model->zero_grad();
          Batch(5, static_cast<std::uint64_t>(step)).loss(model, 0, 5).backward();
          if (step == 2 && job.rank() == workers - 1) model[1]->eval();
        }
      });
      EXPECT_EQ(step, 4);
      EXPECT_THAT(text, AllOf(HasSubstr("step 4 of \"net\": module \"1\" is in train() on rank 0"),
                              HasSubstr("in eval() on rank " + std::to_string(workers - 1)),
                              HasSubstr("alike on all workers")));
    });
  }
}

TEST(DivergingWorkers, AWorkerThatOnlyAnswersInDrainMayBeInEval) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    auto model = with_dropout();
    DataParallel parallel(job, *model);
    const int last = job.rank() == 1 ? 9 : 1;
    for (int step = 1; step <= last; ++step) {
      model->zero_grad();
      Batch(5, static_cast<std::uint64_t>(step)).loss(model, 0, 5).backward();
    }
    if (job.rank() != 1) model->eval();
    EXPECT_EQ(parallel.join([&] { model->zero_grad(); }), 9 - last);
  });
}

}  // namespace
}  // namespace tutti::test::diverging_workers_cases
