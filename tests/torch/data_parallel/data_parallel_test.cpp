// One backward, one sync: against a single process on the joined batch, and what is left untouched.

#include "torch/training.h"

namespace tutti::test::data_parallel_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// With weight decay and momentum, a sum in place of the mean and a smaller learning rate both show.
// promise: data_parallel.h#next_weight, data_parallel.h#report, numerics#divisor-and-weights
TEST(DataParallel, UnevenRowsEqualTheJoinedBatchWithDecayAndMomentum) {
  for (const int workers : {1, 2, 3, 5}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(100 + job.rank());  // rank 0's weights must win
      auto model = mlp();
      DataParallel parallel(job, *model);
      auto alone = mlp();
      copy_parameters(*model, *alone);
      auto optimizer = momentum_and_decay(model->parameters());
      auto optimizer_alone = momentum_and_decay(alone->parameters());
      for (std::uint64_t step = 1; step <= 5; ++step) {
        const std::int64_t rows = 23;
        const Batch batch(rows, step);
        const auto [begin, end] = share_of(rows, job);
        optimizer.zero_grad();
        parallel.next_weight(static_cast<double>(end - begin));
        batch.loss(model, begin, end).backward();
        EXPECT_EQ(parallel.report().collectives, 1);
        EXPECT_EQ(parallel.report().step, static_cast<std::int64_t>(step));
        EXPECT_EQ(parallel.report().weight, static_cast<double>(rows));
        optimizer.step();
        optimizer_alone.zero_grad();
        batch.loss(alone, 0, rows).backward();
        optimizer_alone.step();
        expect_close(*model, *alone, 2e-6);
      }
      expect_equal_everywhere(parallel.group(), *model);
    });
  }
}

TEST(DataParallel, BothKindsOfZeroGradAndConstantAddresses) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    DataParallel parallel(job, *model);
    auto alone = mlp();
    copy_parameters(*model, *alone);
    std::vector<void*> addresses;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const Batch batch(8, step);
      model->zero_grad(/*set_to_none=*/step % 2 == 0);
      alone->zero_grad();
      batch.loss(model, job.rank() * 4, job.rank() * 4 + 4).backward();
      batch.loss(alone, 0, 8).backward();
      for (std::size_t p = 0; p < model->parameters().size(); ++p) {
        const auto& grad = model->parameters()[p].grad();
        EXPECT_TRUE(torch::allclose(grad, alone->parameters()[p].grad(), 1e-5, 1e-6));
        if (step == 1) addresses.push_back(grad.data_ptr());
        EXPECT_EQ(grad.data_ptr(), addresses[p]);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(grad.data_ptr()) % 64, 0u);
      }
    }
  });
}

TEST(DataParallel, ASecondBackwardWithoutZeroGradIsAnErrorNotAWrongNumber) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    batch.loss(model, 0, 4).backward();
    const auto text = text_of([&] { batch.loss(model, 0, 4).backward(); });
    // The first to notice says why, the other may hear of it.
    EXPECT_THAT(text, HasSubstr("zero_grad()"));
    // Nor does scaling the gradient in place make it a fresh one.
    model->zero_grad();
    batch.loss(model, 0, 4).backward();
    model->parameters()[3].mutable_grad().mul_(0.5);
    EXPECT_THAT(text_of([&] { batch.loss(model, 0, 4).backward(); }), HasSubstr("zero_grad()"));
    model->zero_grad();
    batch.loss(model, 0, 4).backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
  });
}

// What is not parallel may be there before the parallel part is made, or come later.
// promise: data_parallel.h#per_replica
TEST(DataParallel, AnExcludedParameterMayComeLater) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto per_replica = [](const std::string& name) { return name.starts_with("own"); };
    model->register_parameter("own_before", torch::full({1}, 1.0 * job.rank()));
    DataParallel parallel(job, *model, {.desync_check_every = 1, .per_replica = per_replica});
    model->register_parameter("own_after", torch::full({1}, 1.0 * job.rank()));
    const Batch batch(4, 1);
    const auto own = model->named_parameters();
    (batch.loss(model, 0, 4) + own["own_before"].sum() * 2 + own["own_after"].sum() * 3).backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
    EXPECT_EQ(own["own_before"].item<double>(), job.rank());
    EXPECT_EQ(own["own_before"].grad().item<double>(), 2);
    EXPECT_EQ(own["own_after"].grad().item<double>(), 3);
    // Any other that comes later is an error.
    model->register_parameter("late", torch::ones({1}));
    model->zero_grad();
    EXPECT_THAT(text_of([&] { batch.loss(model, 0, 4).backward(); }),
                HasSubstr("parameter \"late\" of \"model\" was added or replaced"));
  });
}

// It was found in steps 1 and 100 alone: workers trained heads of their own in silence.
TEST(DataParallel, AParameterThatComesLaterIsFoundInTheNextStep) {
  for (const std::int64_t every : {0, 100}) {
    on_workers(2, [every](const Job& job) {
      auto model = mlp();
      DataParallel parallel(job, *model, {.desync_check_every = every});
      const Batch batch(4, 1);
      const auto [begin, end] = share_of(4, job);
      for (int step = 1; step <= 3; ++step) {
        model->zero_grad();
        batch.loss(model, begin, end).backward();
      }
      model->register_parameter("late", torch::ones({1}));
      model->zero_grad();
      EXPECT_THAT(text_of([&] { batch.loss(model, begin, end).backward(); }),
                  HasSubstr("parameter \"late\" of \"model\" was added or replaced"));
      EXPECT_EQ(parallel.report().step, 3);
    });
  }
}

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (const auto* name : {"a", "b", "c", "d"}) {
      branches.push_back(register_module(name, torch::nn::Linear(6, 3)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, std::size_t branch, bool detach_c = true) {
    auto out = branches[branch]->forward(x);
    if (detach_c) out = out + branches[2]->forward(x).detach();
    return out;
  }
  std::vector<torch::nn::Linear> branches;
};
TORCH_MODULE(Branches);

// nnabla's rule: skipped if and only if no worker wrote; then value, decay, momentum and step count
// stay, byte for byte. A branch that one worker used moves on all, in the same way.
// promise: data_parallel.h#touched, step_report.h#dense_bytes, step_report.h#max_sent_bytes
TEST(DataParallel, WhatNobodyTouchedStaysByteForByteAndIsNotSent) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    Branches model;
    DataParallel parallel(job, *model);
    torch::optim::AdamW optimizer(model->parameters(),
                                  torch::optim::AdamWOptions(0.1).weight_decay(0.1));
    auto sgd = momentum_and_decay(model->parameters());
    const auto c = model->branches[2]->weight.clone();
    const auto d = model->branches[3]->weight.clone();
    const std::size_t bytes_of_one = 128 + 64;  // 18 and 3 floats, padded to 64 bytes
    for (std::uint64_t step = 1; step <= 4; ++step) {
      model->zero_grad();
      const Batch batch(3, step);
      const auto x = batch.x.slice(0, job.rank(), job.rank() + 1);
      model->forward(x, job.rank() == 0 ? 0 : 1).square().sum().backward();
      EXPECT_THAT(parallel.touched(), ElementsAre("a.weight", "a.bias", "b.weight", "b.bias"));
      EXPECT_EQ(parallel.report().parameters_skipped, 4);
      EXPECT_EQ(parallel.report().max_sent_bytes, 2 * bytes_of_one);
      EXPECT_EQ(parallel.report().dense_bytes, 4 * bytes_of_one);
      EXPECT_FALSE(model->branches[2]->weight.grad().defined());
      ASSERT_TRUE(model->branches[0]->weight.grad().defined());
      // Against the mean over three workers, computed here.
      const torch::Tensor w = model->branches[0]->weight.detach().clone().requires_grad_(true);
      const torch::Tensor b = model->branches[0]->bias.detach().clone().requires_grad_(true);
      const auto rest = model->branches[2]->forward(batch.x.slice(0, 0, 1)).detach();
      (torch::nn::functional::linear(batch.x.slice(0, 0, 1), w, b) + rest)
          .square()
          .sum()
          .backward();
      EXPECT_TRUE(torch::allclose(model->branches[0]->weight.grad(), w.grad() / 3, 1e-5, 1e-6));
      optimizer.step();
      sgd.step();
    }
    EXPECT_TRUE(torch::equal(model->branches[2]->weight, c));
    EXPECT_TRUE(torch::equal(model->branches[3]->weight, d));
    EXPECT_FALSE(torch::equal(model->branches[1]->weight, torch::zeros({3, 6})));
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// The negative control of the test above: where untouched parameters get a gradient of zeros, as an
// all-reduce of everything gives them, decay and momentum move them and every byte is sent.
TEST(DataParallel, NegativeControlZerosInPlaceOfTheSkipMoveWhatNobodyTouched) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    Branches model;
    DataParallel parallel(job, *model);
    auto sgd = momentum_and_decay(model->parameters());
    const auto d = model->branches[3]->weight.clone();
    model->forward(Batch(1, 1).x, 0).sum().backward();
    model->zero_grad();
    model->branches[3]->weight.mutable_grad() = torch::zeros({3, 6});
    model->forward(Batch(1, 1).x, 0).sum().backward();
    EXPECT_EQ(parallel.report().parameters_touched, 3);
    sgd.step();
    EXPECT_FALSE(torch::equal(model->branches[3]->weight, d));
  });
}

// promise: data_parallel.h#synchronize
TEST(DataParallel, WrittenMeansWrittenWhateverTheValue) {
  on_workers(2, [](const Job& job) {
    Branches model;
    DataParallel parallel(job, *model);
    const Batch batch(1, 1);
    // A gradient of all zeros counts.
    (model->forward(batch.x, 0) * 0).sum().backward();
    EXPECT_THAT(parallel.touched(), ElementsAre("a.weight", "a.bias"));
    EXPECT_TRUE(torch::equal(model->branches[0]->bias.grad(), torch::zeros(3)));
    // zero_grad() alone does not, in either form.
    for (const bool to_none : {false, true}) {
      model->zero_grad(to_none);
      parallel.synchronize();
      EXPECT_THAT(parallel.touched(), IsEmpty());
      EXPECT_FALSE(model->branches[0]->bias.grad().defined());
    }
    // One set by hand does, on one worker too: the others join.
    if (job.rank() == 0) model->branches[3]->bias.mutable_grad() = torch::ones(3) * 4;
    parallel.synchronize();
    EXPECT_THAT(parallel.touched(), ElementsAre("d.bias"));
    EXPECT_TRUE(torch::equal(model->branches[3]->bias.grad(), torch::ones(3) * 2));
    // … and besides a backward.
    model->zero_grad();
    model->branches[3]->bias.mutable_grad() = torch::ones(3) * (job.rank() + 1);
    model->forward(batch.x, 1).sum().backward();
    EXPECT_THAT(parallel.touched(), ElementsAre("b.weight", "b.bias", "d.bias"));
    EXPECT_TRUE(torch::equal(model->branches[3]->bias.grad(), torch::ones(3) * 1.5));
  });
}

// promise: data_parallel.h#synchronize
TEST(DataParallel, AWorkerWhoseBackwardReachedNothingJoins) {
  on_workers(2, [](const Job& job) {
    Branches model;
    DataParallel parallel(job, *model);
    const Batch batch(1, 1);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      if (job.rank() == 0) {
        model->forward(batch.x, 0).sum().backward();
      } else {
        parallel.synchronize();
      }
      EXPECT_TRUE(torch::equal(model->branches[0]->bias.grad(), torch::ones(3) * 0.5));
    }
  });
}

TEST(DataParallel, AWorkerThatForgetsToJoinIsNamedByTheOthers) {
  const auto outcome = outcome_on_workers(2, [](const Job& job) {
    Branches model;
    DataParallel parallel(job, *model);
    const Batch batch(1, 1);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      if (job.rank() == 0 || step == 0) model->forward(batch.x, 0).sum().backward();
    }
  });
  EXPECT_THAT(outcome.ranks[0].text, HasSubstr("rank 1"));
  EXPECT_THAT(outcome.ranks[0].text, HasSubstr("synchronize()"));
}

// promise: data_parallel.h#DataParallel
TEST(DataParallel, AnExceptionInBackwardDropsTheStepForAllAndTheNextWorks) {
  struct Exploding : torch::autograd::Function<Exploding> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("boom");
    }
  };
  on_workers(3, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      model->zero_grad();
      const Batch batch(3, step);
      auto hidden = model[1]->as<torch::nn::Tanh>()->forward(
          model[0]->as<torch::nn::Linear>()->forward(batch.x));
      if (step == 2 && job.rank() == 1) hidden = Exploding::apply(hidden);
      const auto loss = model[2]->as<torch::nn::Linear>()->forward(hidden).square().sum();
      if (step == 2) {
        if (job.rank() == 1) {
          EXPECT_THROW(loss.backward(), std::exception);
        } else {
          try {
            loss.backward();
            ADD_FAILURE() << "the failure went unnoticed";
          } catch (const PeerFailed& error) {
            EXPECT_EQ(error.rank(), 1);
            EXPECT_EQ(error.step(), 2);
          }
        }
        for (const auto& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
        continue;
      }
      loss.backward();
      EXPECT_EQ(parallel.report().step, static_cast<std::int64_t>(step));
    }
  });
}

// promise: data_parallel.h#OutOfData, data_parallel.h#join, data_parallel.h#stopped
TEST(DataParallel, AWorkerOutOfDataAnswersUntilAllAreOrAllStop) {
  for (const auto policy : {OutOfData::participate, OutOfData::stop_all}) {
    on_workers(3, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      DataParallel parallel(job, *model, {.out_of_data = policy, .desync_check_every = 2});
      torch::optim::Adam optimizer(model->parameters(), 0.01);
      const auto update = [&] {
        optimizer.step();
        optimizer.zero_grad();
      };
      for (int epoch = 1; epoch <= 2; ++epoch) {
        int steps = 0;
        const int mine = 2 * (job.rank() + 1);
        while (steps < mine && !parallel.stopped()) {
          ++steps;
          const Batch batch(3, static_cast<std::uint64_t>(10 * epoch + steps + 100 * job.rank()));
          batch.loss(model, 0, 3).backward();
          update();
        }
        const auto answered = parallel.join(update);
        if (policy == OutOfData::participate) {
          EXPECT_EQ(steps, mine);
          EXPECT_EQ(answered, 6 - mine);
        } else {
          EXPECT_EQ(steps, job.rank() == 0 ? 2 : 3);
          EXPECT_EQ(answered, job.rank() == 0 ? 1 : 0);
        }
        EXPECT_FALSE(parallel.stopped());
        // Whoever had no data took every update all the same.
        expect_equal_everywhere(parallel.group(), *model);
      }
    });
  }
}

/// What docs/data_parallel.md shows, where each worker has two batches more than the one before.
TEST(DataParallel, AnUpdateThatClipsAnswersForAWorkerOutOfDataToo) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      auto plain = mlp();
      copy_parameters(*model, *plain);
      DataParallel parallel(job, *model);
      auto optimizer = momentum_and_decay(model->parameters());
      const auto loss_of = [](torch::nn::Sequential& net, int rank, int step) {
        return Batch(3, static_cast<std::uint64_t>(100 * rank + step)).loss(net, 0, 3);
      };
      int step = 0;
      const auto next_batch = [&] { return ++step <= 2 * (job.rank() + 1); };
      const auto loss = [&] { return loss_of(model, job.rank(), step); };

      const auto update = [&] {
        torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
        optimizer.step();
        optimizer.zero_grad();
      };
      while (next_batch()) {
        loss().backward();
        update();
      }
      parallel.join(update);  // takes part in the steps that others still have

      auto plain_optimizer = momentum_and_decay(plain->parameters());
      for (int taken = 1; taken <= 2 * job.size(); ++taken) {
        plain_optimizer.zero_grad();
        auto sum = torch::zeros({});
        const int first = (taken - 1) / 2;  // of the ranks that have this batch
        for (int r = first; r < job.size(); ++r) sum = sum + loss_of(plain, r, taken);
        (sum / (job.size() - first)).backward();
        EXPECT_GT(torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1), 0.1);
        plain_optimizer.step();
      }
      expect_close(*model, *plain, 1e-6);
      expect_equal_everywhere(parallel.group(), *model);
    });
  }
}

// The handler need not know whether Tutti has seen the failure.
// promise: data_parallel.h#fail
TEST(DataParallel, AHandlerMayAlwaysReportTheFailure) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    DataParallel parallel(job, *model);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    int failed = 0;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      optimizer.zero_grad();
      const Batch batch(4, step);
      try {
        const auto hidden = model->forward(batch.x);
        if (step == 2 && job.rank() == 1) throw std::runtime_error("no batch");
        auto loss = hidden.square().sum();
        if (step == 3 && job.rank() == 1) {  // before any parameter is reached
          loss = loss.detach() * 2;
        }
        if (step == 5 && job.rank() == 0) {  // after some were
          model->parameters()[0].register_hook(
              [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("late"); });
        }
        loss.backward();
        optimizer.step();
      } catch (const std::exception& error) {
        ++failed;
        parallel.fail(error.what());
      }
      if (step == 5 && job.rank() == 0) model->parameters()[0].remove_hook(0);
    }
    EXPECT_EQ(failed, 3);
    EXPECT_EQ(parallel.report().step, 6);
    expect_equal_everywhere(parallel.group(), *model);
  });
}

TEST(DataParallel, GradientsSetByHandThatDoNotFitAreRefusedAndTheNextStepWorks) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    auto bias = model[0]->as<torch::nn::Linear>()->bias;
    const auto refused = [&](const torch::Tensor& gradient, const std::string& text) {
      model->zero_grad();
      bias.mutable_grad() = gradient;
      EXPECT_THAT(text_of([&] { parallel.synchronize(); }), HasSubstr(text));
    };
    refused(torch::ones({5}), "[5]");
    refused(torch::ones({17}, torch::kFloat64), "Double");
    refused(torch::ones({17}).to_sparse(), "sparse");
    refused(torch::ones({17}).requires_grad_(), "graph");
    model->zero_grad();
    Batch(4, 1).loss(model, 0, 4).backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
    // A reduced gradient that was not cleared is no gradient set by hand.
    EXPECT_THAT(text_of([&] { parallel.synchronize(); }), HasSubstr("zero_grad()"));
    model->zero_grad();
    bias.mutable_grad() = torch::ones({17});
    EXPECT_THAT(text_of([&] { parallel.join([] {}); }), HasSubstr("set by hand before join()"));
  });
}

TEST(DataParallel, GradientsSetByHandInABackwardThatHasReachedThemAreRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    auto bias = model[2]->as<torch::nn::Linear>()->bias;
    const auto hook = model->parameters()[0].register_hook([bias](const torch::Tensor& gradient) {
      bias.mutable_grad() = torch::ones({3});
      return gradient;
    });
    const auto backward = [&] { Batch(4, 1).loss(model, 0, 4).backward(); };
    const std::string expected =
        "parameter \"2.bias\" of \"model\": its gradient was set by hand in the midst";
    EXPECT_THAT(text_of(backward), HasSubstr(expected));
    model->zero_grad();
    EXPECT_THAT(text_of([&] {
                  auto scope = parallel.accumulate({.micro_batches = 1});
                  scope.micro_batch(1, [&] { return Batch(4, 1).loss(model, 0, 4); });
                }),
                HasSubstr(expected));
    model->parameters()[0].remove_hook(hook);
    model->zero_grad();
    backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
  });
}

// promise: data_parallel.h#next_weight, data_parallel.h#synchronize
TEST(DataParallel, SynchronizeTakesTheWeightThatWasAnnounced) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    parallel.next_weight(3 + job.rank());
    if (job.rank() == 0) {
      Batch(4, 1).loss(model, 0, 4).backward();
    } else {
      parallel.synchronize();
    }
    EXPECT_EQ(parallel.report().weight, 7);
    model->zero_grad();
    Batch(4, 1).loss(model, 0, 4).backward();
    EXPECT_EQ(parallel.report().weight, 2);
  });
}

}  // namespace
}  // namespace tutti::test::data_parallel_cases
