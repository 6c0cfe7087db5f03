// Scopes of micro-batches: any cut over workers, any order of forwards and backwards, the same
// bytes.

#include <set>

#include "torch/training.h"

namespace tutti::test::accumulation_cases {
namespace {

using ::testing::HasSubstr;

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 13))),
        lstm(
            register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(13, 17).num_layers(2)))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({17})))),
        output(register_module("output", torch::nn::Linear(17, 11))) {}
  torch::Tensor loss(const torch::Tensor& codes) {
    const auto hidden = std::get<0>(lstm->forward(embedding->forward(codes.slice(0, 0, -1))));
    return torch::nn::functional::cross_entropy(
        output->forward(norm->forward(hidden)).flatten(0, 1), codes.slice(0, 1).flatten());
  }
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::LayerNorm norm;
  torch::nn::Linear output;
};
TORCH_MODULE(Recurrent);

torch::Tensor codes_of(std::int64_t step, std::int64_t leaf) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step * 100 + leaf));
  return torch::randint(11, {6, 2 + leaf % 3}, generator, torch::kInt64);
}

/// How the micro-batches of a worker are run; all must give the same bytes.
enum class Style { returned_loss, own_backward, forwards_first, count_unknown };

/// Trains three steps on that many workers and returns the hash of the parameters.
std::string train(int workers, std::int64_t leaves, Style style) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(7);
    Recurrent model;
    DataParallel parallel(job, *model);
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    const auto [begin, end] = share_of(leaves, job);
    for (std::int64_t step = 1; step <= 3; ++step) {
      optimizer.zero_grad();
      AccumulateOptions options;
      if (style != Style::count_unknown) options.micro_batches = end - begin;
      auto scope = parallel.accumulate(options);
      std::vector<torch::Tensor> losses;
      for (auto l = begin; l < end && style == Style::forwards_first; ++l) {
        losses.push_back(model->loss(codes_of(step, l)));
      }
      for (auto l = begin; l < end; ++l) {
        const auto weight = static_cast<double>(2 + l % 3);
        if (style == Style::own_backward) {
          scope.micro_batch(weight, [&] { model->loss(codes_of(step, l)).backward(); });
        } else if (style == Style::forwards_first) {
          scope.micro_batch(weight, [&] { return losses[static_cast<std::size_t>(l - begin)]; });
        } else {
          scope.micro_batch(weight, [&] { return model->loss(codes_of(step, l)); });
        }
      }
      scope.finish();
      EXPECT_EQ(parallel.report().collectives, 1);
      EXPECT_EQ(parallel.report().leaves, leaves);
      optimizer.step();
    }
    expect_equal_everywhere(parallel.group(), *model);
    return parameters_sha256(*model);
  });
}

// promise: data_parallel.h#finish, numerics#divisor-and-weights, share.h#share_of
TEST(Accumulation, AnyCutOverWorkersAndAnyStyleGivesTheSameBytes) {
  for (const std::int64_t leaves : {4, 7}) {
    std::set<std::string> hashes;
    for (const int workers : {1, 2, 3, 4}) {
      hashes.insert(train(workers, leaves, Style::returned_loss));
    }
    hashes.insert(train(2, leaves, Style::own_backward));
    hashes.insert(train(3, leaves, Style::forwards_first));
    hashes.insert(train(1, leaves, Style::count_unknown));
    hashes.insert(train(3, leaves, Style::count_unknown));
    EXPECT_EQ(hashes.size(), 1u);
  }
}

// promise: data_parallel.h#accumulate
TEST(Accumulation, EqualsTheJoinedBatchAndAKeptRunningSumDoesNotMatter) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    DataParallel parallel(job, *model);
    auto alone = mlp();
    copy_parameters(*model, *alone);
    auto optimizer = momentum_and_decay(model->parameters());
    auto optimizer_alone = momentum_and_decay(alone->parameters());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const Batch batch(19, step);
      const auto [begin, end] = share_of(19, job);
      const auto parts =
          split({batch.x.slice(0, begin, end), batch.y.slice(0, begin, end)}, 3 + job.rank());
      optimizer.zero_grad();
      auto scope = parallel.accumulate();
      for (const auto& part : parts) {
        scope.micro_batch(part.weight, [&] {
          return torch::mse_loss(model->forward(part.tensors[0]), part.tensors[1]);
        });
      }
      scope.finish();
      EXPECT_EQ(parallel.report().weight, 19);
      optimizer.step();
      optimizer_alone.zero_grad();
      batch.loss(alone, 0, 19).backward();
      optimizer_alone.step();
      expect_close(*model, *alone, 2e-6);
    }
  });
}

TEST(Accumulation, WhatOnlyAnEarlyLeafTouchedArrives) {
  for (const int workers : {1, 2}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(1);
      auto first = torch::nn::Linear(6, 3);
      auto second = torch::nn::Linear(6, 3);
      torch::nn::Sequential both(first, second);
      DataParallel parallel(job, *both);
      const Batch batch(4, 1);
      const auto [begin, end] = share_of(4, job);
      auto scope = parallel.accumulate({.micro_batches = end - begin});
      for (auto l = begin; l < end; ++l) {
        auto& used = l == 0 ? first : second;
        scope.micro_batch(1, [&] { return used->forward(batch.x.slice(0, l, l + 1)).sum(); });
      }
      scope.finish();
      EXPECT_TRUE(torch::allclose(first->bias.grad(), torch::ones(3) * 0.25));
      EXPECT_TRUE(torch::allclose(second->bias.grad(), torch::ones(3) * 0.75));
    });
  }
}

// promise: data_parallel.h#seed, numerics#what-the-bits-may-depend-on-and-what-not
TEST(Accumulation, ASeedMakesDropoutIndependentOfTheWorkers) {
  std::set<std::string> hashes;
  for (const int workers : {1, 2, 4}) {
    hashes.insert(text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(3);
      torch::nn::Sequential model(torch::nn::Linear(6, 40), torch::nn::Dropout(0.5),
                                  torch::nn::Linear(40, 3));
      DataParallel parallel(job, *model);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      const auto [begin, end] = share_of(4, job);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        // Drawn from torch's generator, which dropout must not have moved.
        const auto drawn = torch::randint(1000, {1}).item<std::int64_t>();
        const Batch batch(8, step + static_cast<std::uint64_t>(drawn));
        optimizer.zero_grad();
        auto scope = parallel.accumulate({.micro_batches = end - begin, .seed = 5});
        for (auto l = begin; l < end; ++l) {
          scope.micro_batch(1, [&] { return batch.loss(model, 2 * l, 2 * l + 2); });
        }
        scope.finish();
        optimizer.step();
      }
      return parameters_sha256(*model);
    }));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

// A program that goes on from files of its own draws what it would have drawn.
// promise: data_parallel.h#first_step
TEST(Accumulation, SeedsAreOfTheStepThatAProgramGoesOnWith) {
  on_workers(2, [](const Job& job) {
    const auto drawn_in = [&](std::int64_t first, std::int64_t last) {
      auto model = mlp();
      DataParallel parallel(job, *model, {.first_step = first});
      torch::Tensor drawn;
      for (auto step = first; step <= last; ++step) {
        model->zero_grad();
        auto scope = parallel.accumulate({.micro_batches = 1, .seed = 5});
        scope.micro_batch(1, [&] {
          drawn = torch::rand({4});
          return Batch(4, 1).loss(model, 0, 4);
        });
        scope.finish();
        EXPECT_EQ(parallel.report().step, step);
      }
      EXPECT_THAT(text_of([&] { parallel.synchronize(); }),
                  HasSubstr("step " + std::to_string(last)));
      return drawn;
    };
    EXPECT_TRUE(torch::equal(drawn_in(1, 3), drawn_in(3, 3)));
    EXPECT_FALSE(torch::equal(drawn_in(1, 2), drawn_in(3, 3)));
  });
}

// promise: data_parallel.h#micro_batch
TEST(Accumulation, SeveralLossesOfALeafAreOneLeaf) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    auto scope = parallel.accumulate({.micro_batches = 1});
    scope.micro_batch(1, [&] {
      batch.loss(model, 0, 2).backward();
      batch.loss(model, 2, 4).backward();
      return batch.loss(model, 1, 3);
    });
    scope.finish();
    EXPECT_EQ(parallel.report().leaves, 2);
    const auto reduced = model->parameters()[0].grad().clone();
    model->zero_grad();
    (batch.loss(model, 0, 2) + batch.loss(model, 2, 4) + batch.loss(model, 1, 3)).backward();
    EXPECT_TRUE(torch::allclose(reduced, model->parameters()[0].grad(), 1e-5, 1e-6));
  });
}

// promise: data_parallel.h#micro_batch
TEST(Accumulation, AnExceptionInALeafDropsTheStepForAllAndTheNextWorks) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    for (int step = 1; step <= 3; ++step) {
      model->zero_grad();
      const auto run = [&] {
        auto scope = parallel.accumulate({.micro_batches = 2});
        scope.micro_batch(1, [&] { return batch.loss(model, 0, 2); });
        scope.micro_batch(1, [&]() -> torch::Tensor {
          if (step == 2 && job.rank() == 1) throw std::runtime_error("no such file: data.bin");
          return batch.loss(model, 2, 4);
        });
        scope.finish();
      };
      if (step != 2) {
        run();
        EXPECT_EQ(parallel.report().step, step);
      } else if (job.rank() == 1) {
        EXPECT_THROW(run(), std::runtime_error);
      } else {
        const auto text = text_of<PeerFailed>(run);
        EXPECT_THAT(text, HasSubstr("rank 1"));
        EXPECT_THAT(text, HasSubstr("no such file: data.bin"));
      }
    }
  });
}

TEST(Accumulation, AScopeWhoseStepWasDroppedDropsNoOther) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    const auto loss = [&] { return batch.loss(model, 0, 4); };
    const auto good = [&] {
      model->zero_grad();
      auto scope = parallel.accumulate({.micro_batches = 1});
      scope.micro_batch(1, loss);
      scope.finish();
    };
    good();
    if (job.rank() == 1) {
      model->zero_grad();
      auto scope = parallel.accumulate({.micro_batches = 2});
      scope.micro_batch(1, loss);
      parallel.fail("shard 3 is damaged");
      EXPECT_THAT(text_of([&] { scope.micro_batch(1, loss); }), HasSubstr("was dropped"));
    } else {
      EXPECT_THAT(text_of<PeerFailed>(good), HasSubstr("shard 3 is damaged"));
    }
    good();
    // Not everything that is thrown is a std::exception.
    model->zero_grad();
    if (job.rank() == 0) {
      auto scope = parallel.accumulate({.micro_batches = 1});
      EXPECT_THROW(scope.micro_batch(1, [&]() -> torch::Tensor { throw 7; }), int);
    } else {
      EXPECT_THAT(text_of<PeerFailed>(good), HasSubstr("rank 0"));
    }
    good();
    EXPECT_EQ(parallel.report().step, 5);
    // A gradient that nobody would take.
    EXPECT_THAT(text_of([&] {
                  model->zero_grad();
                  auto scope = parallel.accumulate({.micro_batches = 1});
                  scope.micro_batch(1, loss);
                  model->parameters()[0].mutable_grad() = torch::ones({17, 6});
                  scope.finish();
                }),
                HasSubstr("set by hand"));
    good();
  });
}

// promise: data_parallel.h#Accumulation, data_parallel.h#micro_batch, data_parallel.h#seed
TEST(Accumulation, MisuseIsAnError) {
  on_workers(1, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    const auto loss = [&] { return batch.loss(model, 0, 4); };
    EXPECT_THAT(text_of([&] { auto scope = parallel.accumulate(); }),
                HasSubstr("without finish()"));
    EXPECT_THAT(text_of([&] {
                  auto scope = parallel.accumulate({.micro_batches = 2});
                  scope.micro_batch(1, loss);
                  scope.finish();
                }),
                HasSubstr("2 micro-batches, but 1"));
    EXPECT_THAT(text_of([&] {
                  auto scope = parallel.accumulate({.micro_batches = 1});
                  scope.micro_batch(1, loss);
                  scope.micro_batch(1, loss);
                }),
                HasSubstr("one more"));
    EXPECT_THAT(text_of([&] {
                  auto scope = parallel.accumulate();
                  loss().backward();
                }),
                HasSubstr("micro_batch()"));
    for (const double weight : {-1.0, std::nan(""), HUGE_VAL}) {
      EXPECT_THAT(text_of([&] {
                    auto scope = parallel.accumulate();
                    scope.micro_batch(weight, loss);
                  }),
                  HasSubstr("finite"));
    }
    EXPECT_THAT(text_of([&] { (void)parallel.accumulate({.seed = 1}); }),
                HasSubstr("micro_batches"));
    EXPECT_THAT(text_of([&] { (void)parallel.accumulate({.micro_batches = -1}); }),
                HasSubstr("-1"));
    // After all of this a plain step works.
    model->zero_grad();
    loss().backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
  });
}

// promise: data_parallel.h#bytes_held, data_parallel.h#micro_batches
TEST(Accumulation, HoldsFewGradientsWhereTheNumberOfMicroBatchesIsGiven) {
  on_workers(2, [](const Job& job) {
    constexpr std::size_t kOneGradient = 4096;  // of the model, in whole pages
    const Group order(job, "order");
    for (const bool given : {true, false}) {
      auto model = mlp();
      DataParallel parallel(job, *model);
      auto scope = parallel.accumulate({.micro_batches = given ? std::optional(8) : std::nullopt});
      for (std::uint64_t k = 0; k < 8; ++k) {
        scope.micro_batch(1, [&] { return Batch(4, k).loss(model, 0, 4); });
      }
      order.barrier();  // how many rank 0 has is not known before it has finished
      const bool keeps_all = !given && job.rank() > 0;
      // A binary counter takes 3 + 1 for 8 of them.
      // On a device they are there, and few come to the host.
      const bool keeps_here = keeps_all && model->parameters().front().is_cpu();
      EXPECT_LE(parallel.bytes_held(), (keeps_here ? 8 : 4) * kOneGradient);
      EXPECT_EQ(parallel.bytes_held() == 8 * kOneGradient, keeps_here);
      scope.finish();
      EXPECT_EQ(parallel.report().leaves, 16);
    }
  });
}

// promise: data_parallel.h#split
TEST(Accumulation, SplitCutsRowsWithTheirWeights) {
  const auto x = torch::arange(7);
  const auto parts = split({x, x * 2}, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].weight, 3);
  EXPECT_EQ(parts[1].weight, 2);
  EXPECT_TRUE(torch::equal(
      torch::cat({parts[0].tensors[1], parts[1].tensors[1], parts[2].tensors[1]}), x * 2));
  EXPECT_EQ(split({x}, 9)[8].weight, 0);
  EXPECT_THAT(text_of([&] { split({x, torch::arange(6)}, 2); }), HasSubstr("7 and 6 rows"));
  EXPECT_THAT(text_of([&] { split({x}, 0); }), HasSubstr("0 parts"));
  EXPECT_THAT(text_of([&] { split({torch::tensor(1.0)}, 2); }), HasSubstr("dim 0"));
}

// findings: the same nodes of the tree, by other workers than in the step before, were taken to be
// on the hosts of those.
TEST(Accumulation, OfNumbersThatChangeFromStepToStepBetweenHosts) {
  const auto outcome = run_process_ranks(
      3,
      [](const Job& job) {
        at::set_num_threads(1);
        torch::nn::Linear model(2, 1);
        DataParallel parallel(job, *model, {.divide = Divide::not_at_all});
        const std::vector<std::vector<std::int64_t>> steps = {
            {1, 1, 1}, {0, 1, 2}, {1, 2, 0}, {0, 2, 1}, {1, 1, 1}};
        for (const auto& counts : steps) {
          model->zero_grad();
          const auto mine = counts[static_cast<std::size_t>(job.rank())];
          auto scope = parallel.accumulate({.micro_batches = mine});
          for (std::int64_t k = 0; k < mine; ++k) {
            scope.micro_batch(1, [&] {
              return model->forward(torch::full({1, 2}, 1 + static_cast<float>(job.rank()))).sum();
            });
          }
          scope.finish();
          const auto sum = static_cast<float>(counts[0] + 2 * counts[1] + 3 * counts[2]);
          EXPECT_EQ(model->weight.grad()[0][0].item<float>(), sum);
        }
      },
      {.hosts = even_hosts(3, 2)});
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test::accumulation_cases
