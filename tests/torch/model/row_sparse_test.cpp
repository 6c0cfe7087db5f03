// Gradients that are sparse in their rows, against the dense form of the same model and against
// formulas row by row.

#include <cmath>
#include <limits>
#include <set>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::row_sparse_cases {
namespace {

using ::testing::HasSubstr;

/// A table of words and what is made of them; sparse or dense.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse)
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 6).sparse(sparse)))),
        output(register_module("output", torch::nn::Linear(6, 2))) {}
  torch::Tensor loss(const torch::Tensor& codes) {
    return output->forward(table->forward(codes)).square().sum();
  }
  torch::nn::Embedding table;
  torch::nn::Linear output;
};
TORCH_MODULE(Words);

/// Some twice; none for every fifth.
torch::Tensor codes_of(std::int64_t step, std::int64_t piece) {
  const auto seed = static_cast<std::uint64_t>(step * 100 + piece);
  const std::int64_t count = seed % 5 == 0 ? 0 : 2 + static_cast<std::int64_t>(seed % 7);
  const auto codes =
      torch::randint(50, {count}, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kInt64);
  return torch::cat({codes, codes.slice(0, 0, 1)});
}

Words words(bool sparse, std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return Words(sparse);
}

bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) { return torch::equal(a, b); }

torch::Tensor trained_table(const Job& job, bool sparse, const Optimizer& optimizer,
                            const TrainerOptions& options = {.shards = 5}, int steps = 4) {
  auto model = words(sparse);
  Trainer trainer(job, *model, optimizer, options);
  for (int step = 0; step < steps; ++step) {
    trainer.step([&](Shard& shard) {
      const auto codes = codes_of(shard.step(), shard.index());
      return shard.loss(model->loss(codes), static_cast<double>(codes.numel()));
    });
  }
  return model->table->weight.detach().clone();
}

TEST(RowSparse, WithoutMomentumAndDecayItIsTheDenseForm) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      for (const Optimizer& optimizer :
           {Optimizer(Sgd{.lr = 0.1}), Optimizer(Adagrad{.lr = 0.1})}) {
        EXPECT_TRUE(
            same_bytes(trained_table(job, true, optimizer), trained_table(job, false, optimizer)));
      }
    });
  }
}

// torch.optim.SparseAdam's rule: rows that nobody touched keep value and moments, and t counts the
// parameter's updates.
// promise: optimizer.h#Optimizer, trainer_options.h#row_sparse
TEST(RowSparse, AdamIsLazy) {
  on_workers(2, [](const Job& job) {
    auto model = words(true);
    const auto start = model->table->weight.detach().clone();
    Trainer trainer(job, *model, Adam{.lr = 0.1, .weight_decay = 0.01}, {.shards = 3});
    std::set<std::int64_t> touched;
    auto m = torch::zeros_like(start);
    auto v = torch::zeros_like(start);
    auto p = start.clone();
    for (int step = 1; step <= 4; ++step) {
      trainer.accumulate([&](Shard& shard) {
        const auto codes = codes_of(shard.step(), shard.index());
        return shard.loss(model->loss(codes), static_cast<double>(codes.numel()));
      });
      const auto gradient = trainer.gradient("table.weight");
      ASSERT_TRUE(gradient.is_sparse() && gradient.is_coalesced());
      trainer.apply();
      const auto rows = gradient.indices()[0];
      for (std::int64_t k = 0; k < rows.numel(); ++k) {
        const auto row = rows[k].item<std::int64_t>();
        touched.insert(row);
        const auto g = gradient.values()[k] + 0.01 * p[row];
        m[row] = 0.9 * m[row] + 0.1 * g;
        v[row] = 0.999 * v[row] + 0.001 * g * g;
        const auto below = (v[row] / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
        p[row] -= 0.1 / (1 - std::pow(0.9, step)) * m[row] / below;
      }
    }
    EXPECT_LT(touched.size(), 50u);
    EXPECT_TRUE(torch::allclose(model->table->weight.detach(), p, 1e-5, 1e-6));
    for (std::int64_t row = 0; row < 50; ++row) {
      if (touched.contains(row)) continue;
      EXPECT_TRUE(same_bytes(model->table->weight.detach()[row], start[row]));
    }
  });
}

// promise: trainer.h#gradient, trainer.h#gradient_norm
TEST(RowSparse, GradientAndNormAreThoseOfTheDenseForm) {
  on_workers(3, [](const Job& job) {
    const auto look = [&](bool sparse, double clip) {
      auto model = words(sparse);
      Trainer trainer(job, *model, Sgd{}, {.shards = 4, .clip = {.norm = clip}});
      trainer.accumulate(
          [&](Shard& shard) { return shard.loss(model->loss(codes_of(1, shard.index() + 1))); });
      const auto gradient = trainer.gradient("table.weight");
      const auto norm = trainer.gradient_norm();
      const auto result = trainer.apply();
      EXPECT_EQ(result.gradient_norm.value_or(norm), norm);
      return std::pair(gradient, norm);
    };
    for (const double clip : {0.0, 0.5}) {
      const auto [sparse, sparse_norm] = look(true, clip);
      const auto [dense, dense_norm] = look(false, clip);
      EXPECT_TRUE(sparse.is_sparse());
      EXPECT_TRUE(same_bytes(sparse.to_dense(), dense));
      EXPECT_NEAR(sparse_norm, dense_norm, 1e-9 * dense_norm);
    }
  });
}

TEST(RowSparse, TiedToADenseLayerAllRowsAreTouched) {
  on_workers(2, [](const Job& job) {
    const auto run = [&](bool sparse) {
      auto model = words(sparse);
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
      trainer.step([&](Shard& shard) {
        const auto x = model->table->forward(codes_of(1, shard.index() + 1));
        return shard.loss(torch::matmul(x, model->table->weight.t()).square().mean());
      });
      return model->table->weight.detach().clone();
    };
    // torch adds the two parts of one shard's gradient in another order.
    EXPECT_TRUE(torch::allclose(run(true), run(false), 1e-5, 1e-6));
  });
}

TEST(RowSparse, SixteenBitTablesKeepMasterRows) {
  on_workers(2, [](const Job& job) {
    const auto run = [&](bool sparse) {
      auto model = words(sparse);
      model->to(torch::kBFloat16);
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4});
      for (int step = 0; step < 3; ++step) {
        trainer.step([&](Shard& shard) {
          // Each word once: torch adds those of one shard in 16 bits, Tutti in 32.
          const auto codes = torch::arange(5) * (shard.index() + 2);
          return shard.loss(model->loss(codes));
        });
      }
      return model->table->weight.detach().clone();
    };
    EXPECT_TRUE(same_bytes(run(true), run(false)));
  });
}

TEST(RowSparse, GradientsHandedInByTheUserMayBeSparse) {
  on_workers(2, [](const Job& job) {
    auto model = words(true);
    const auto start = model->table->weight.detach().clone();
    Trainer trainer(job, *model, Sgd{.lr = 1}, {.shards = 2, .loss_scale = {.start = 4}});
    trainer.step([&](Shard& shard) {
      const auto rows = torch::tensor({{7, 3, 7}});
      const auto values = torch::ones({3, 6}) * static_cast<double>(1 + shard.index());
      return shard.gradients({torch::sparse_coo_tensor(rows, values, {50, 6}), {}, {}});
    });
    auto expected = start.clone();
    expected[3] -= 1.5;
    expected[7] -= 3;
    EXPECT_TRUE(torch::allclose(model->table->weight.detach(), expected));
  });
}

TEST(RowSparse, ARowThatIsNotFiniteDropsTheStepForAll) {
  on_workers(3, [](const Job& job) {
    auto model = words(true);
    const auto start = model->table->weight.detach().clone();
    Trainer trainer(job, *model, Sgd{}, {.shards = 3});
    const auto result = trainer.step([&](Shard& shard) {
      const auto loss = model->loss(codes_of(1, shard.index() + 1));
      return shard.loss(shard.index() == 1 ? loss * INFINITY : loss);
    });
    EXPECT_FALSE(result.applied);
    EXPECT_THAT(result.dropped_because, HasSubstr("\"table.weight\" in shard 1"));
    EXPECT_TRUE(same_bytes(model->table->weight.detach(), start));
    EXPECT_EQ(trainer.traffic().steps, 0);
    // The next one is as if there had been none.
    trainer.step(
        [&](Shard& shard) { return shard.loss(model->loss(codes_of(1, shard.index() + 1))); });
    auto other = words(true);
    Trainer fresh(job, *other, Sgd{}, {.shards = 3});
    fresh.step(
        [&](Shard& shard) { return shard.loss(other->loss(codes_of(1, shard.index() + 1))); });
    EXPECT_TRUE(same_bytes(model->table->weight.detach(), other->table->weight.detach()));
    EXPECT_EQ(trainer.traffic().last_step[1].bytes, fresh.traffic().last_step[1].bytes);
  });
}

// Finite rows whose sum is not: found before anything has changed, with a codec too.
TEST(RowSparse, ASumOfRowsThatOverflowsDropsTheStep) {
  on_workers(2, [](const Job& job) {
    for (const bool coded : {false, true}) {
      auto model = words(true);
      const auto start = model->table->weight.detach().clone();
      TrainerOptions options{.shards = 2};
      if (coded) options.compression.codec = half_codec();
      Trainer trainer(job, *model, Sgd{}, options);
      const auto result = trainer.step([&](Shard& shard) {
        const auto rows = torch::tensor({{7}});
        const auto most = torch::full({1, 6}, std::numeric_limits<float>::max());
        return shard.gradients({torch::sparse_coo_tensor(rows, most, {50, 6}), {}, {}});
      });
      EXPECT_FALSE(result.applied);
      EXPECT_THAT(result.dropped_because, HasSubstr("sum of the gradients of \"table.weight\""));
      EXPECT_TRUE(same_bytes(model->table->weight.detach(), start));
    }
  });
}

TEST(RowSparse, RowsThatTheTableHasNotAreNamed) {
  on_workers(1, [](const Job& job) {
    auto model = words(true);
    Trainer trainer(job, *model, Sgd{}, {.shards = 1});
    for (const std::int64_t row :
         {std::int64_t{-1}, std::int64_t{50}, (std::int64_t{1} << 32) + 5}) {
      const auto gradient = at::_sparse_coo_tensor_unsafe(torch::full({1, 1}, row, torch::kInt64),
                                                          torch::ones({1, 6}), {50, 6});
      EXPECT_THAT(text_of<InvalidArgument>([&] {
                    trainer.step([&](Shard& shard) { return shard.gradients({gradient, {}, {}}); });
                  }),
                  HasSubstr("\"table.weight\": its gradient has row " + std::to_string(row)));
    }
  });
}

TEST(RowSparse, ACheckpointIsOfARunWithTheSameDeclarations) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto sparse = words(true);
    auto dense = words(false);
    Trainer(job, *sparse, Sgd{}, {.shards = 2}).save(folder.file("run"));
    Trainer other(job, *dense, Sgd{}, {.shards = 2});
    EXPECT_THAT(text_of([&] { other.load(folder.file("run")); }), HasSubstr("row-sparse"));
  });
}

// promise: trainer_options.h#row_sparse
TEST(RowSparse, CodecsLeaveRowsAlone) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const auto frozen = [&](const Compression& compression) {
        auto model = words(true);
        model->output->weight.requires_grad_(false);
        model->output->bias.requires_grad_(false);
        Trainer trainer(job, *model, Sgd{.lr = 0.1},
                        {.shards = 4, .compression = compression, .logical_workers = 2});
        trainer.step(
            [&](Shard& shard) { return shard.loss(model->loss(codes_of(1, shard.index() + 1))); });
        return model->table->weight.detach().clone();
      };
      EXPECT_TRUE(same_bytes(frozen({.codec = top_k_codec(0.01)}), frozen({})));
    });
  }
}

TEST(RowSparse, TrafficHasALineForEachTable) {
  on_workers(2, [](const Job& job) {
    auto model = words(true);
    Trainer trainer(job, *model, Sgd{}, {.shards = 2});
    const auto result = trainer.step([&](Shard& shard) {
      return shard.loss(model->loss(torch::arange(10) + 5 * shard.index()));
    });
    const auto report = trainer.traffic();
    ASSERT_EQ(report.last_step.size(), 2u);
    EXPECT_EQ(report.last_step[1].parameters, "table.weight");
    EXPECT_EQ(report.last_step[1].bytes, (2u * 10 + 2u * 15) * (6 * 4 + 4));
    EXPECT_EQ(report.last_step[1].bytes_dense, 4u * 50 * 6 * 4);
    EXPECT_EQ(result.report.max_sent_bytes, 64u + 64u + 10 * 28);
    EXPECT_THAT(report.table(), HasSubstr("table.weight"));
  });
}

// ---- DataParallel ----

// promise: data_parallel.h#row_sparse
TEST(RowSparse, DataParallelGivesTheDenseGradientsRows) {
  for (const int workers : {1, 2, 3, 5}) {
    on_workers(workers, [](const Job& job) {
      auto sparse = words(true);
      auto dense = words(false);
      DataParallel parallel(job, *sparse);
      DataParallel reference(job, *dense);
      torch::optim::SGD sparse_sgd(sparse->parameters(), 0.1);
      torch::optim::SGD dense_sgd(dense->parameters(), 0.1);
      for (int step = 1; step <= 4; ++step) {
        // Rank 0 never has rows.
        const auto codes = codes_of(step, job.rank());
        sparse->zero_grad(step % 2 == 0);
        dense->zero_grad();
        sparse->loss(codes).backward();
        dense->loss(codes).backward();
        const auto& gradient = sparse->table->weight.grad();
        if (job.size() == 1) {
          EXPECT_FALSE(gradient.defined());
          continue;
        }
        ASSERT_TRUE(gradient.defined() && gradient.is_sparse() && gradient.is_coalesced());
        EXPECT_TRUE(same_bytes(gradient.to_dense(), dense->table->weight.grad()));
        sparse_sgd.step();
        dense_sgd.step();
      }
      expect_equal_everywhere(parallel.group(), *sparse);
    });
  }
}

TEST(RowSparse, DataParallelAccumulatesAndTakesGradientsSetByHand) {
  on_workers(3, [](const Job& job) {
    auto sparse = words(true);
    auto dense = words(false);
    DataParallel parallel(job, *sparse);
    DataParallel reference(job, *dense);
    const auto accumulate = [&](DataParallel& into, Words& model, bool tells) {
      model->zero_grad();
      auto step =
          into.accumulate({.micro_batches = tells ? std::optional<std::int64_t>(3) : std::nullopt});
      for (int part = 0; part < 3; ++part) {
        step.micro_batch(part + 1, [&] {
          model->loss(codes_of(7, part)).backward();  // two backwards are one leaf
          return model->loss(codes_of(8, part + job.rank()));
        });
      }
      step.finish();
    };
    for (const bool tells : {true, false}) {
      accumulate(parallel, sparse, tells);
      accumulate(reference, dense, true);
      EXPECT_TRUE(same_bytes(sparse->table->weight.grad().to_dense(), dense->table->weight.grad()));
    }

    sparse->zero_grad();
    const auto mine =
        torch::sparse_coo_tensor(torch::tensor({{4, 4}}), torch::ones({2, 6}), {50, 6});
    sparse->table->weight.mutable_grad() = mine;
    parallel.synchronize();
    EXPECT_EQ(sparse->table->weight.grad()._nnz(), 1);
    EXPECT_TRUE(same_bytes(sparse->table->weight.grad().values(), torch::full({1, 6}, 2.0)));
    EXPECT_THAT(text_of<InvalidArgument>([&] { sparse->loss(codes_of(1, 1)).backward(); }),
                HasSubstr("zero_grad()"));
  });
}

// libtorch's Adam refuses sparse gradients: who wants it makes them dense.
// promise: data_parallel.h#row_sparse
TEST(RowSparse, DataParallelLeavesTheGradientToTheProgram) {
  on_workers(2, [](const Job& job) {
    auto model = words(true);
    DataParallel parallel(job, *model);
    torch::optim::Adam adam(model->parameters(), 0.1);
    auto& weight = model->table->weight;
    for (int step = 1; step <= 3; ++step) {
      model->loss(codes_of(step, job.rank() + 1)).backward();
      weight.mutable_grad() = weight.grad().to_dense();
      adam.step();
      model->zero_grad(step == 1);
      if (step > 1) weight.mutable_grad().reset();  // zeros by hand would be a gradient
    }
    // A dense gradient by hand touches all rows, also after a step of rows.
    model->zero_grad();
    weight.mutable_grad() = torch::ones({50, 6});
    parallel.synchronize();
    EXPECT_TRUE(same_bytes(weight.grad().to_dense(), torch::ones({50, 6})));
    // An alias of what was reduced is no gradient set by hand.
    weight.mutable_grad() = weight.grad().detach();
    EXPECT_THAT(text_of<InvalidArgument>([&] { model->loss(codes_of(1, 1)).backward(); }),
                HasSubstr("zero_grad()"));
    expect_equal_everywhere(parallel.group(), *model);
  });
}

TEST(RowSparse, DataParallelOfOtherTypesAndDivisors) {
  on_workers(3, [](const Job& job) {
    for (const auto type : {torch::kFloat64, torch::kBFloat16}) {
      for (const auto divide : {Divide::by_contributors, Divide::not_at_all}) {
        auto sparse = words(true);
        auto dense = words(false);
        sparse->to(type);
        dense->to(type);
        DataParallel parallel(job, *sparse, {.divide = divide});
        DataParallel reference(job, *dense, {.divide = divide});
        for (auto* const model : {&sparse, &dense}) {
          // Each word once; rank 1 has none, but its layer counts.
          const auto codes = job.rank() == 1 ? torch::empty({0}, torch::kInt64)
                                             : torch::arange(6) * (job.rank() + 1);
          if (job.rank() == 1 && divide == Divide::by_contributors) {
            (*model)->output->forward(torch::ones({1, 6}, type)).sum().backward();
          } else {
            (*model)->loss(codes).backward();
          }
        }
        const auto& gradient = sparse->table->weight.grad();
        EXPECT_EQ(gradient.scalar_type(), type);
        EXPECT_TRUE(same_bytes(gradient.to_dense(), dense->table->weight.grad()));
      }
    }
  });
}

TEST(RowSparse, DataParallelDrains) {
  on_workers(3, [](const Job& job) {
    auto model = words(true);
    DataParallel parallel(job, *model);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    for (int step = 0; step < 1 + job.rank(); ++step) {
      sgd.zero_grad();
      model->loss(codes_of(step, job.rank() + 1)).backward();
      sgd.step();
    }
    parallel.join([&] {
      sgd.step();
      sgd.zero_grad();
    });
    expect_equal_everywhere(parallel.group(), *model);
  });
}

TEST(RowSparse, DataParallelAppliesCodecsToTheRestAlone) {
  on_workers(3, [](const Job& job) {
    auto model = words(true);
    auto plain = words(true);
    DataParallel parallel(job, *model, {.compression = {.codec = top_k_codec(0.1)}});
    DataParallel reference(job, *plain);
    model->loss(codes_of(1, job.rank() + 1)).backward();
    plain->loss(codes_of(1, job.rank() + 1)).backward();
    EXPECT_TRUE(
        same_bytes(model->table->weight.grad().to_dense(), plain->table->weight.grad().to_dense()));
    EXPECT_FALSE(same_bytes(model->output->weight.grad(), plain->output->weight.grad()));
    EXPECT_EQ(parallel.traffic().last_step.back().parameters, "table.weight");
  });
}

// ---- declarations ----

// promise: trainer_options.h#row_sparse
TEST(RowSparse, ParametersMayBeDeclared) {
  on_workers(2, [](const Job& job) {
    auto table = torch::nn::Embedding(20, 3);
    DataParallel parallel(job, *table,
                          {.row_sparse = [](const std::string& name) { return name == "weight"; }});
    torch::embedding(table->weight, torch::tensor({1, 2}), -1, false, /*sparse=*/true)
        .sum()
        .backward();
    EXPECT_TRUE(table->weight.grad().is_sparse());
  });
}

TEST(RowSparse, BadDeclarationsAreNamed) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto model = words(true);
    EXPECT_THAT(text_of<Unsupported>([&] {
                  Trainer trainer(group, *model, torch_optimizer<torch::optim::Adagrad>(1e-2));
                }),
                HasSubstr("row-sparse \"table.weight\" with torch Adagrad"));
    auto dense = words(false);
    EXPECT_THAT(text_of<Mismatch>([&] {
                  const auto declared = [&](const std::string&) { return job.rank() == 0; };
                  DataParallel parallel(group, *dense, {.row_sparse = declared});
                }),
                HasSubstr("row-sparse"));
    auto scalar = torch::zeros({}).requires_grad_();
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  const auto all = [](const std::string&) { return true; };
                  DataParallel parallel(group, {{"s", scalar}}, {.row_sparse = all});
                }),
                HasSubstr("\"s\" has no rows"));
    auto renormalised =
        torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).max_norm(1.0).sparse(true));
    EXPECT_THAT(text_of<Unsupported>([&] { DataParallel parallel(group, *renormalised); }),
                HasSubstr("\"weight\" is an embedding with max_norm"));
    auto transposed = torch::zeros({3, 5}).t().requires_grad_();
    EXPECT_THAT(text_of<Unsupported>([&] {
                  const auto all = [](const std::string&) { return true; };
                  DataParallel parallel(group, {{"t", transposed}}, {.row_sparse = all});
                }),
                HasSubstr("\"t\""));
  });
}

}  // namespace
}  // namespace tutti::test::row_sparse_cases
