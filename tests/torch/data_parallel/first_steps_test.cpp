// What a DataParallel notices in its first steps, whose buffers count, and what one worker's
// weights do to its gradients.

#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::first_steps_cases {
namespace {

/// Warnings of rank 0 with that text in them, over so many steps.
void expect_warnings(
    int workers, int expected, const std::string& text,
    const std::function<void(const Job&)>& before,
    const std::function<torch::Tensor(const Job&, torch::nn::Sequential&, int)>& loss_of) {
  on_workers(workers, [&](const Job& job) {
    const LogCapture log;
    before(job);
    auto model = mlp();
    DataParallel parallel(job, *model, {.name = "net"});
    for (int step = 1; step <= 5; ++step) {
      model->zero_grad();
      loss_of(job, model, step).backward();
    }
    EXPECT_EQ(log.count(text), job.rank() == 0 ? expected : 0);
    EXPECT_EQ(log.count("warning: "), log.count(text));
  });
}

torch::Tensor loss_of_part(const Job& job, torch::nn::Sequential& model, int step) {
  const auto [begin, end] = share_of(12, job);
  return Batch(12, static_cast<std::uint64_t>(step)).loss(model, begin, end);
}

TEST(FirstSteps, TheSameDataOnAllWorkersIsSaidOnce) {
  const auto seed = [](const Job&) { torch::manual_seed(1); };
  const std::string text = "step 1 of \"net\": all workers computed the same gradient";
  for (const int workers : {1, 2, 3}) {
    expect_warnings(workers, workers > 1 ? 1 : 0, text, seed,
                    [](const Job&, torch::nn::Sequential& model, int step) {
                      return Batch(6, static_cast<std::uint64_t>(step)).loss(model, 0, 6);
                    });
    expect_warnings(workers, 0, text, seed, loss_of_part);
  }
  // Two workers of three.
  expect_warnings(3, 0, text, seed, [](const Job& job, torch::nn::Sequential& model, int step) {
    return Batch(6, static_cast<std::uint64_t>(step + (job.rank() == 2 ? 50 : 0)))
        .loss(model, 0, 6);
  });
  // Gradients that are zero everywhere say nothing.
  expect_warnings(2, 0, text, seed, [](const Job&, torch::nn::Sequential& model, int) {
    return model->forward(torch::ones({2, 6})).sum() * 0;
  });
}

TEST(FirstSteps, TheSameDataInMicroBatchesAndOfASparseTableIsSaidToo) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    const LogCapture log;
    auto model = mlp();
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(9, 2).sparse(true));
    DataParallel parallel(job, *model, {.name = "net"});
    DataParallel sparse(job, *table, {.name = "table"});
    auto step = parallel.accumulate();
    for (int part = 0; part < 3; ++part) {
      step.micro_batch(2, [&] { return Batch(6, 1).loss(model, 2 * part, 2 * part + 2); });
    }
    step.finish();
    table->forward(torch::tensor({1, 5, 5})).square().sum().backward();
    const int expected = job.rank() == 0 ? 1 : 0;
    EXPECT_EQ(log.count("step 1 of \"net\": all workers computed the same gradient"), expected);
    EXPECT_EQ(log.count("step 1 of \"table\": all workers computed the same gradient"), expected);
  });
}

/// Warnings of rank 0 that batches are unequal, over five steps of `rows` rows in all.
void expect_uneven(int workers, int expected, std::int64_t rows,
                   const std::function<void(DataParallel&, std::int64_t own)>& before,
                   const DataParallelOptions& options = {.name = "net"}) {
  on_workers(workers, [&](const Job& job) {
    torch::manual_seed(1);
    const LogCapture log;
    auto model = mlp();
    DataParallel parallel(job, *model, options);
    const auto [begin, end] = share_of(rows, job);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      model->zero_grad();
      before(parallel, end - begin);
      Batch(rows, step).loss(model, begin, end).backward();
    }
    EXPECT_EQ(log.count("and each worker's loss counts alike"), job.rank() == 0 ? expected : 0);
    EXPECT_EQ(log.count("warning: "), log.count("and each worker's loss counts alike"));
  });
}

// findings-3: D3
TEST(FirstSteps, UnequalBatchesWhoseLossesCountAlikeAreSaidOnce) {
  const auto nothing = [](DataParallel&, std::int64_t) {};
  for (const int workers : {1, 2, 3}) {
    expect_uneven(workers, workers > 1 ? 1 : 0, 7, nothing);
    expect_uneven(workers, workers > 1 ? 1 : 0, workers + 1, nothing);  // 2 rows and 1
    expect_uneven(workers, 0, 6, nothing);
    // A program that has called next_weight() is not warned.
    expect_uneven(workers, 0, 7, [](DataParallel& parallel, std::int64_t own) {
      parallel.next_weight(static_cast<double>(own));
    });
    expect_uneven(workers, 0, 7,
                  [](DataParallel& parallel, std::int64_t) { parallel.next_weight(1); });
    expect_uneven(workers, 0, 7, nothing, {.name = "net", .divide = Divide::not_at_all});
  }
}

TEST(FirstSteps, TheShorterLastBatchOfAnEpochIsSaidWithItsRows) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    const LogCapture log;
    torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3).bias(false)),
                                torch::nn::Flatten(), torch::nn::Linear(8, 2));
    DataParallel parallel(job, *model, {.name = "net"});
    for (int step = 1; step <= 9; ++step) {
      const int rows = step == 8 && job.rank() == 2 ? 3 : 5;
      model->forward(torch::full({rows, 1, 4, 4}, 0.1 * (step + job.rank()))).mean().backward();
      model->zero_grad();
    }
    EXPECT_EQ(log.count("step 8 of \"net\": the loss is of 5 rows on rank 0, of 3 on rank 2, and"),
              job.rank() == 0 ? 1 : 0);
    EXPECT_EQ(log.count("warning: "), job.rank() == 0 ? 1 : 0);
  });
}

using LossOfRows = std::function<torch::Tensor(torch::nn::Linear& model, std::int64_t rows)>;

/// Expects the warning, or none, from two workers whose losses are of 2 and 3 rows; steps 1 and 2
/// multiply them, so that step 3 alone shows it. `name` is for failures.
void expect_rows_said(const char* name, bool is_said, const LossOfRows& loss) {
  on_workers(2, [&](const Job& job) {
    SCOPED_TRACE(name);
    torch::manual_seed(1);
    const LogCapture log;
    torch::nn::Linear model(4, 4);
    DataParallel parallel(job, *model, {.name = "net"});
    for (int step = 1; step <= 2; ++step) {
      model->zero_grad();
      (loss(model, 2 + job.rank()) * 1).sum().backward();
    }
    model->zero_grad();
    loss(model, 2 + job.rank()).backward();
    EXPECT_EQ(log.count("step 3 of \"net\": the loss is of 2 rows on rank 0, of 3 on rank 1, and"),
              is_said && job.rank() == 0 ? 1 : 0);
    EXPECT_EQ(log.count("warning: "), is_said && job.rank() == 0 ? 1 : 0);
  });
}

torch::Tensor rows_of(std::int64_t rows) {
  return torch::randn({rows, 4},
                      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rows)));
}

TEST(FirstSteps, RowsAreThoseThatTheLossIsTheMeanOf) {
  using torch::nn::Linear;
  const auto labels = [](std::int64_t rows) { return torch::arange(rows) % 4; };
  expect_rows_said("cross entropy", true, [&](Linear& model, std::int64_t rows) {
    return torch::cross_entropy_loss(model->forward(rows_of(rows)), labels(rows));
  });
  expect_rows_said("one of two losses", true, [&](Linear& model, std::int64_t rows) {
    const auto out = model->forward(rows_of(rows));
    return 0.1 * model->weight.square().sum() + torch::mse_loss(out, torch::zeros({rows, 4})) +
           out.abs().mean();
  });
  expect_rows_said("beside a penalty", true, [&](Linear& model, std::int64_t rows) {
    return torch::cross_entropy_loss(model->forward(rows_of(rows)), labels(rows)) +
           model->weight.square().mean();
  });
  expect_rows_said("a matrix by hand", true, [&](Linear& model, std::int64_t rows) {
    return torch::binary_cross_entropy_with_logits(rows_of(rows).matmul(model->weight),
                                                   torch::ones({rows, 4}));
  });
  expect_rows_said("recomputed", true, [&](Linear& model, std::int64_t rows) {
    return recompute([&](const torch::Tensor& x) { return model->forward(x); }, rows_of(rows))
        .square()
        .mean();
  });
  expect_rows_said("some words of sentences", true, [&](Linear& model, std::int64_t rows) {
    const auto out = model->forward(torch::ones({5, rows, 4})).view({-1, 4}).slice(0, 0, rows);
    return torch::nll_loss(out.log_softmax(1), labels(rows));
  });
}

TEST(FirstSteps, LossesWhoseRowsAreNotSeenAreNotCompared) {
  using torch::nn::Linear;
  expect_rows_said("lengths of as many sentences", false, [](Linear& model, std::int64_t rows) {
    return model->forward(torch::ones({rows, 3, 4})).mean(0).square().mean();
  });
  expect_rows_said("sentences, batch first", false, [](Linear& model, std::int64_t rows) {
    return model->forward(torch::ones({3, rows, 4})).square().mean();
  });
  expect_rows_said("weighed by the program", false, [](Linear& model, std::int64_t rows) {
    return model->forward(rows_of(rows)).square().mean() * (2 * static_cast<double>(rows) / 5);
  });
  expect_rows_said("weighed by what is learned", false, [](Linear& model, std::int64_t rows) {
    return model->forward(rows_of(rows)).square().mean() * (-model->bias[0]).exp();
  });
  expect_rows_said("a sum that is divided", false, [](Linear& model, std::int64_t rows) {
    return model->forward(rows_of(rows)).square().sum() / static_cast<double>(rows);
  });
  expect_rows_said("no data", false, [](Linear& model, std::int64_t rows) {
    return (model->weight * static_cast<double>(rows)).square().mean();
  });
}

TEST(FirstSteps, AnEmptyBatchBesideOthersIsSaid) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    const LogCapture log;
    torch::nn::Linear model(4, 2);
    DataParallel parallel(job, *model, {.name = "net"});
    const std::int64_t rows = job.rank() == 1 ? 0 : 4;
    torch::cross_entropy_loss(model->forward(torch::ones({rows, 4}) * (1 + job.rank())),
                              torch::zeros({rows}, torch::kInt64))
        .backward();
    EXPECT_EQ(log.count("the loss is of 4 rows on rank 0, of 0 on rank 1, and"),
              job.rank() == 0 ? 1 : 0);
  });
}

TEST(FirstSteps, GeneratorsThatNobodySeededAreSaidOnce) {
  const std::string text = "warning: \"net\": torch's generator";
  expect_warnings(
      3, 1, text,
      [](const Job& job) {
        // As a process starts: torch draws 53 bits.
        torch::manual_seed(0x1234567890123ULL + static_cast<std::uint64_t>(job.rank()));
      },
      loss_of_part);
  // One has drawn from it.
  expect_warnings(
      2, 1, text,
      [](const Job& job) {
        torch::manual_seed(1);
        if (job.rank() == 1) torch::randn({1}, torch::kCPU);
      },
      loss_of_part);
  expect_warnings(
      2, 0, text, [](const Job&) { torch::manual_seed(1); }, loss_of_part);
  // On purpose.
  expect_warnings(
      2, 0, text, [](const Job& job) { torch::manual_seed(1 + job.rank()); }, loss_of_part);
}

// A second model, or a second phase, repeated what had been said of the one generator.
TEST(FirstSteps, GeneratorsAreSaidOnceHoweverManyModelsAreTrained) {
  on_workers(2, [](const Job& job) {
    const LogCapture log;
    const auto train = [&](const char* name) {
      auto model = mlp();
      DataParallel parallel(job, *model, {.name = name});
      loss_of_part(job, model, 1).backward();
    };
    const int expected = job.rank() == 0 ? 1 : 0;
    torch::manual_seed(0x1234567890123ULL + static_cast<std::uint64_t>(job.rank()));
    train("first");
    train("second");
    EXPECT_EQ(log.count("\"first\": torch's generator was not seeded"), expected);
    EXPECT_EQ(log.count("warning: "), expected);
    torch::manual_seed(1);  // another cause
    if (job.rank() == 1) torch::randn({1}, torch::kCPU);
    train("third");
    train("fourth");
    EXPECT_EQ(log.count("\"third\": torch's generator has one seed"), expected);
    EXPECT_EQ(log.count("warning: "), 2 * expected);
  });
}

// It said that workers seemed to have the same data, which such a loss does not have.
TEST(FirstSteps, APenaltyAloneIsSaidToBeFine) {
  const auto seed = [](const Job&) { torch::manual_seed(1); };
  const auto penalty = [](torch::nn::Sequential& model) {
    auto sum = torch::zeros({});
    for (const auto& parameter : model->parameters()) sum = sum + parameter.square().sum();
    return sum;
  };
  expect_warnings(2, 1, "Nothing is wrong where the loss has no data (a penalty on the parameters)",
                  seed,
                  [&](const Job&, torch::nn::Sequential& model, int) { return penalty(model); });
  expect_warnings(2, 0, "all workers computed the same gradient", seed,
                  [&](const Job& job, torch::nn::Sequential& model, int step) {
                    return loss_of_part(job, model, step) + penalty(model);
                  });
}

struct Counting : torch::nn::Module {
  Counting() {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  torch::nn::Linear linear = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};

TEST(FirstSteps, AWorkerWhoseRowsWeighNothingGivesNobodyItsBuffers) {
  for (const int workers : {1, 2, 3}) {
    for (const bool in_scopes : {false, true}) {
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(1);
        Counting model;
        here(model);
        DataParallel parallel(job, model);
        for (int idle = 0; idle <= workers; ++idle) {  // the last time all have rows
          const bool has_rows = job.rank() != idle || workers == 1;
          const auto mean = model.norm->running_mean;
          {
            const torch::NoGradGuard no_grad;
            mean.fill_(-1);
          }
          const auto loss = [&] {
            const torch::NoGradGuard no_grad;
            mean.fill_(has_rows ? 10 + job.rank() : std::nan(""));
            const torch::AutoGradMode enable(true);
            return model.linear->forward(torch::ones({2, 4})).sum();
          };
          const double weight = has_rows ? 2 : 0;
          for (auto& parameter : model.parameters()) parameter.mutable_grad().reset();
          if (in_scopes) {
            auto step = parallel.accumulate({.micro_batches = 2});
            step.micro_batch(0, loss);
            step.micro_batch(weight, loss);
            step.finish();
          } else {
            parallel.next_weight(weight);
            loss().backward();
          }
          const int first = idle == 0 && workers > 1 ? 1 : 0;
          EXPECT_EQ(mean[0].item<float>(), 10 + first) << idle << " of " << workers;
        }
      });
    }
  }
}

// promise: data_parallel.h#every_step
TEST(FirstSteps, AFirstWorkerWithoutDataDoesNotFreezeBuffers) {
  for (const int workers : {2, 3}) {
    for (const bool in_scopes : {false, true}) {
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(1);
        Counting model;
        here(model);
        DataParallel parallel(job, model);
        torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
        const int batches = job.rank() == 0 ? 2 : 40;
        auto data = at::make_generator<at::CPUGeneratorImpl>(10 + job.rank());
        const auto loss = [&] {
          const auto x = torch::randn({8, 4}, data) * 7;
          return model.norm->forward(model.linear->forward(x)).square().mean();
        };
        const auto update = [&] {
          optimizer.step();
          optimizer.zero_grad();
        };
        for (int batch = 0; batch < batches; ++batch) {
          if (in_scopes) {
            auto step = parallel.accumulate();
            step.micro_batch(1, loss);
            step.finish();
          } else {
            loss().backward();
          }
          update();
        }
        parallel.join(update);
        EXPECT_EQ(model.norm->num_batches_tracked.item<std::int64_t>(), 40);
        auto all = all_gather(parallel.group(), model.norm->running_var.reshape({1, 4}));
        for (int r = 0; r < workers; ++r) EXPECT_TRUE(torch::equal(all[r], all[0]));
        EXPECT_GT(all.max().item<double>(), 10);  // 40 steps, not 2
      });
    }
  }
}

/// (w · g) / w is not g.
// promise: numerics#divisor-and-weights
TEST(FirstSteps, OneWorkerWithWeightsHasTheGradientsOfPlainTorch) {
  for (const auto divide : {Divide::by_weight, Divide::by_contributors}) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      on_workers(1, [&](const Job& job) {
        torch::manual_seed(1);
        auto model = mlp();
        auto plain = mlp();
        copy_parameters(*model, *plain);
        model->to(type);
        plain->to(type);
        DataParallel parallel(job, *model, {.divide = divide});
        for (int step = 1; step <= 20; ++step) {
          const Batch batch(60, static_cast<std::uint64_t>(step));
          const auto loss_of = [&](torch::nn::Sequential& net) {
            return torch::mse_loss(net->forward(batch.x.to(type)), batch.y.to(type));
          };
          for (auto* net : {&model, &plain}) {
            (*net)->zero_grad();
            if (net == &model) parallel.next_weight(60);
            loss_of(*net).backward();
          }
          const auto mine = model->parameters();
          const auto theirs = plain->parameters();
          for (std::size_t p = 0; p < mine.size(); ++p) {
            EXPECT_TRUE(torch::equal(mine[p].grad(), theirs[p].grad())) << step << ' ' << p;
          }
          EXPECT_EQ(parallel.report().weight, 60);
        }
      });
    }
  }
  // The sum itself stays a sum.
  on_workers(1, [](const Job& job) {
    auto weight = torch::ones({3}).requires_grad_();
    DataParallel parallel(Group(job, "sum"), {{"w", weight}}, {.divide = Divide::not_at_all});
    parallel.next_weight(60);
    weight.sum().backward();
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({3}, 60.0)));
  });
}

}  // namespace
}  // namespace tutti::test::first_steps_cases
