// Split layers in backwards whose losses count differently, whoever weighs them: gradients are
// those of one process that adds up all losses, each times its weight.

#include "torch/training.h"
#include "tutti/parallel_embedding.h"
#include "tutti/parallel_linear.h"
#include "tutti/sync_batch_norm.h"

namespace tutti::test::split_weights_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

constexpr auto kWide = torch::kFloat64;

torch::Tensor draw(int seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes,
                      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed)))
      .to(kWide);
}

torch::nn::Linear linear(int in, int out, int seed) {
  torch::nn::Linear layer(in, out);
  layer->to(kWide);
  const torch::NoGradGuard no_grad;
  layer->weight.copy_(draw(seed, {out, in}));
  layer->bias.copy_(draw(seed + 1, {out}));
  return layer;
}

int rows_of(int rank) { return 2 + 3 * rank; }
torch::Tensor samples(int rank, int step) {
  return draw(100 + 10 * step + rank, {rows_of(rank), 3});
}

void expect_near(const torch::Tensor& mine, const torch::Tensor& right, const std::string& what) {
  ASSERT_TRUE(mine.defined()) << what;
  EXPECT_TRUE(torch::allclose(mine, right, 1e-9, 1e-12)) << what << ":\n" << mine << '\n' << right;
}

/// The mean over all rows of all workers of `of_all`'s, which is differentiated in `parameters`.
Tensors gradients_of_one(int workers, int step, const Tensors& parameters,
                         const std::function<torch::Tensor(const torch::Tensor& x)>& of_all) {
  Tensors x;
  for (int rank = 0; rank < workers; ++rank) x.push_back(samples(rank, step));
  return torch::autograd::grad({of_all(torch::cat(x)).mean()}, parameters);
}

/// A generator before a discriminator that has layers of all workers, as in docs/how.md: the
/// step is the generator's. `turn` says whose parameters learn, and what the losses count.
struct Pair {
  explicit Pair(const Group& group)
      : generator(linear(3, 4, 1)),
        before(linear(4, 4, 3)),
        norm(group, torch::nn::BatchNormOptions(4)),
        head(group, ParallelLinearOptions{.features = 4, .classes = 4, .seed = 5, .dtype = kWide}),
        discriminator(torch::nn::ModuleList(before, norm, head)) {
    norm->to(kWide);
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return head->logits(norm->forward(before->forward(generator->forward(x)))).pow(3).mean();
  }
  torch::nn::Linear generator;
  torch::nn::Linear before;
  SyncBatchNorm norm;
  ParallelLinear head;
  torch::nn::ModuleList discriminator;
};

torch::Tensor whole_loss(const Pair& pair, const torch::Tensor& head, const torch::Tensor& bias,
                         const Tensors& generator, const torch::Tensor& x) {
  const auto h = torch::linear(x, generator[0], generator[1]);
  const auto b = torch::linear(h, pair.before->weight.detach(), pair.before->bias.detach());
  const auto n = torch::batch_norm(b, {}, {}, {}, {}, true, 0.0, 1e-5, false);
  return torch::linear(n, head, bias).pow(3);
}

// findings-3: B2
TEST(SplitWeights, OfALossThatAnotherDataParallelWeighsAreIts) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      Pair pair(group);
      DataParallel of_generator(group, *pair.generator, {.name = "G"});
      DataParallel of_discriminator(group, *pair.discriminator, {.name = "D"});
      for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(false);
      const auto head = all_gather_variable(group, pair.head->weight.detach());
      const auto bias = all_gather_variable(group, pair.head->bias.detach());
      Tensors whole = {pair.generator->weight.detach().clone().requires_grad_(),
                       pair.generator->bias.detach().clone().requires_grad_()};
      for (int step = 0; step < 3; ++step) {
        const auto right = gradients_of_one(workers, step, whole, [&](const torch::Tensor& x) {
          return whole_loss(pair, head, bias, whole, x);
        });
        pair.generator->zero_grad();
        const auto x = samples(job.rank(), step);
        if (step == 2) {  // in a scope
          auto scope = of_generator.accumulate();
          scope.micro_batch(rows_of(job.rank()), [&] { return pair.loss(x); });
          scope.finish();
        } else {
          of_generator.next_weight(rows_of(job.rank()));
          pair.loss(x).backward();
        }
        expect_near(pair.generator->weight.grad(), right[0], fmt::format("step {}", step));
        expect_near(pair.generator->bias.grad(), right[1], fmt::format("step {}", step));
      }
    });
  }
}

// findings-3: B2
TEST(SplitWeights, ThatTwoDataParallelsTellDifferentlyAreRefused) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      Pair pair(group);
      DataParallel of_generator(group, *pair.generator, {.name = "G"});
      DataParallel of_discriminator(group, *pair.discriminator, {.name = "D"});
      of_generator.next_weight(2);
      EXPECT_THAT(text_of<InvalidArgument>([&] { pair.loss(samples(job.rank(), 0)).backward(); }),
                  AllOf(HasSubstr("DataParallel \"G\""), HasSubstr("DataParallel \"D\""),
                        HasSubstr("losses count")));
    });
  }
}

// findings-3: B2
TEST(SplitWeights, OfALayerThatNobodyRegisteredAreTheLosses) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      Pair pair(group);
      std::vector<std::pair<std::string, torch::Tensor>> named;
      for (const auto& item : pair.generator->named_parameters()) {
        named.emplace_back(item.key(), item.value());
      }
      DataParallel parallel(group, named);
      for (auto& parameter : pair.discriminator->parameters()) parameter.requires_grad_(false);
      const auto head = all_gather_variable(group, pair.head->weight.detach());
      const auto bias = all_gather_variable(group, pair.head->bias.detach());
      Tensors whole = {pair.generator->weight.detach().clone().requires_grad_(),
                       pair.generator->bias.detach().clone().requires_grad_()};
      const auto right = gradients_of_one(workers, 0, whole, [&](const torch::Tensor& x) {
        return whole_loss(pair, head, bias, whole, x);
      });
      parallel.next_weight(rows_of(job.rank()));
      pair.loss(samples(job.rank(), 0)).backward();
      expect_near(pair.generator->weight.grad(), right[0], "weight");
    });
  }
}

// findings-3: B2
TEST(SplitWeights, OfOtherSamplesForTheSameClassesAreTheLosses) {
  // The features of all members times the classes of one: forward().
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      auto trunk = linear(3, 4, 1);
      ParallelLinear head(group, {.features = 4, .classes = 5, .seed = 5, .dtype = kWide});
      for (auto& parameter : head->parameters()) parameter.requires_grad_(false);
      DataParallel parallel(group, *trunk);
      const auto all_rows = all_gather_variable(group, head->weight.detach());
      const auto all_bias = all_gather_variable(group, head->bias.detach());
      Tensors whole = {trunk->weight.detach().clone().requires_grad_(),
                       trunk->bias.detach().clone().requires_grad_()};
      Tensors x;
      double count = 0;
      for (int rank = 0; rank < workers; ++rank) {
        x.push_back(samples(rank, 0));
        count += 1 + rank;
      }
      auto sum = torch::zeros({}, kWide);
      const auto logits =
          torch::linear(torch::linear(torch::cat(x), whole[0], whole[1]), all_rows, all_bias);
      for (int rank = 0; rank < workers; ++rank) {
        const auto [first, last] = share_of(5, rank, workers);
        sum = sum + (1 + rank) * logits.slice(1, first, last).pow(3).mean();
      }
      const auto right = torch::autograd::grad({sum / count}, whole);
      parallel.next_weight(1 + job.rank());
      head->forward(trunk->forward(samples(job.rank(), 0))).pow(3).mean().backward();
      expect_near(trunk->weight.grad(), right[0], "weight");
    });
  }
}

/// docs/operations.md: classes are split over `model`, their gradients averaged over `data`.
// findings-3: B2
TEST(SplitWeights, OfNeighboursInAGridCountInTheirCommonLayers) {
  for (const int workers : {2, 4}) {
    on_workers(workers, [&](const Job& job) {
      const Group world(job);
      const Group model = world.split(job.rank() / 2, "model");
      const Group data = world.split(job.rank() % 2, "data");
      auto trunk = linear(3, 4, 1);
      ParallelLinear head(model, {.features = 4, .classes = 4, .seed = 5, .dtype = kWide});
      ParallelEmbedding table(model, {.rows = 6, .dim = 3, .seed = 7, .dtype = kWide});
      torch::nn::ModuleList split(table, head);
      DataParallel trunks(world, *trunk, {.name = "trunk", .divide = Divide::not_at_all});
      DataParallel layers(data, *split,
                          {.name = "split",
                           .divide = Divide::not_at_all,
                           .row_sparse = [](const std::string& name) { return name[0] == '0'; }});
      auto all_rows = all_gather_variable(model, head->weight.detach()).requires_grad_();
      auto all_bias = all_gather_variable(model, head->bias.detach()).requires_grad_();
      auto all_table = all_gather_variable(model, table->weight.detach()).requires_grad_();
      const Tensors whole = {trunk->weight.detach().clone().requires_grad_(),
                             trunk->bias.detach().clone().requires_grad_(), all_rows, all_bias,
                             all_table};
      const auto words = [](int rank) { return torch::arange(rows_of(rank)) % (3 + rank); };
      auto sum = torch::zeros({}, kWide);
      for (int rank = 0; rank < workers; ++rank) {
        const auto x = samples(rank, 0) + whole[4].index_select(0, words(rank));
        const auto h = torch::linear(x, whole[0], whole[1]);
        sum = sum + (1 + rank) * torch::linear(h, whole[2], whole[3]).pow(3).mean();
      }
      const auto right = torch::autograd::grad({sum}, whole);
      trunks.next_weight(1 + job.rank());
      layers.next_weight(1 + job.rank());
      const auto x = samples(job.rank(), 0) + table->forward(words(job.rank()));
      head->logits(trunk->forward(x)).pow(3).mean().backward();
      const auto mine = [&](const torch::Tensor& all, std::int64_t rows) {
        const auto [first, last] = share_of(rows, model);
        return all.slice(0, first, last);
      };
      expect_near(trunk->weight.grad(), right[0], "trunk");
      expect_near(head->weight.grad(), mine(right[2], 4), "head");
      expect_near(head->bias.grad(), mine(right[3], 4), "bias");
      expect_near(table->weight.grad().to_dense(), mine(right[4], 6), "table");
    });
  }
}

// findings-3: B2
TEST(SplitWeights, OfANeighbourWithoutRowsWhoseClassesOthersLearnIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group world(job);
    const Group data = world.split(job.rank(), "data");
    ParallelLinear head(world, {.features = 3, .classes = 4, .seed = 5, .dtype = kWide});
    DataParallel heads(data, *head, {.name = "head", .divide = Divide::not_at_all});
    const auto x = samples(job.rank(), 0).slice(0, 0, job.rank() == 0 ? 2 : 0);
    heads.next_weight(job.rank() == 0 ? 1 : 0);
    const auto step = [&] { head->logits(x).sum().backward(); };
    if (job.rank() == 0) {
      step();
      expect_near(head->weight.grad()[0], x.sum(0), "head");
    } else {
      EXPECT_THAT(text_of<InvalidArgument>(step), HasSubstr("leave all weights at 1"));
    }
  });
}

TEST(SplitWeights, RowsThatAreGivenByNameAreRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    ParallelLinear head(group, {.features = 3, .classes = 4, .seed = 5});
    ParallelEmbedding table(group, {.rows = 4, .dim = 3, .seed = 5});
    const auto before = head->weight.detach().clone();
    for (const auto& [name, tensor] : {std::pair{"head", head->bias}, {"table", table->weight}}) {
      const std::vector<std::pair<std::string, torch::Tensor>> rows = {{name, tensor}};
      EXPECT_THAT(text_of<InvalidArgument>([&] { const DataParallel parallel(group, rows); }),
                  AllOf(HasSubstr(fmt::format("\"{}\"", name)),
                        HasSubstr("is this worker's rows of a Parallel"),
                        HasSubstr("make the DataParallel of the module")));
    }
    EXPECT_TRUE(torch::equal(head->weight, before));
    // A tensor whose layer is gone is no layer's.
    const auto kept = [&] {
      return ParallelLinear(group, ParallelLinearOptions{.features = 3, .classes = 4, .seed = 5})
          ->weight;
    }();
    const DataParallel parallel(group,
                                std::vector<std::pair<std::string, torch::Tensor>>{{"kept", kept}});
  });
}

TEST(SplitWeights, RowsThatAreGivenByNameAreRefusedWhateverTheOtherWorkers) {
  on_workers(4, [](const Job& job) {
    const Group group(job);
    const Group pair = group.split(job.rank() / 2, "pair");
    struct Own : ParallelLinearImpl {
      explicit Own(const Group& group)
          : ParallelLinearImpl(group, {.features = 3, .classes = 4, .seed = 5}),
            scale(register_parameter("scale", torch::ones({2}))) {
        note_rows();
      }
      torch::Tensor scale;
    };
    Own head(pair);
    for (const auto& tensor : {head.weight, head.bias, head.scale}) {
      const std::vector<std::pair<std::string, torch::Tensor>> rows = {{"rows", tensor}};
      EXPECT_THAT(text_of<InvalidArgument>([&] { const DataParallel parallel(group, rows); }),
                  HasSubstr("is this worker's rows"));
      EXPECT_THAT(text_of<InvalidArgument>(
                      [&] { const AveragedParallel parallel(pair, rows, local_sgd(2)); }),
                  HasSubstr("is this worker's rows"));
    }
    // Workers of `data` have the same rows, as in a grid.
    const Group data = group.split(job.rank() % 2, "data");
    const DataParallel parallel(
        data, std::vector<std::pair<std::string, torch::Tensor>>{{"weight", head.weight}});
  });
}

/// What counts nothing gives nothing, NaN either.
TEST(SplitWeights, OfAMicroBatchThatCountsNothingGiveNothing) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      ParallelEmbedding table(group, {.rows = 6, .dim = 3, .seed = 7, .dtype = kWide});
      ParallelLinear head(group, {.features = 3, .classes = 4, .seed = 5, .dtype = kWide});
      torch::nn::ModuleList model(table, head);
      DataParallel parallel(group, *model);
      const auto loss = [&](std::int64_t rows) {
        return head->logits(table->forward(torch::arange(rows))).pow(2).mean();
      };
      const auto step = [&](bool has_an_empty_one) {
        model->zero_grad();
        auto scope = parallel.accumulate();
        if (has_an_empty_one) scope.micro_batch(0, [&] { return loss(0); });
        scope.micro_batch(3, [&] { return loss(4); });
        scope.finish();
        return std::pair{head->weight.grad().clone(), table->weight.grad().to_dense()};
      };
      const auto [rows, words] = step(false);
      const auto [rows_too, words_too] = step(true);
      EXPECT_TRUE(rows.isfinite().all().item<bool>());
      EXPECT_TRUE(torch::equal(rows, rows_too)) << rows_too;
      EXPECT_TRUE(torch::equal(words, words_too)) << words_too;
    });
  }
}

/// They are in units of its loss, which counts nothing.
TEST(SplitWeights, OfRowsThatOnlyOthersLearnOutsideOfAnyDataParallelAreRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto trunk = linear(3, 4, 1);
    ParallelLinear head(group, {.features = 4, .classes = 4, .seed = 5, .dtype = kWide});
    DataParallel parallel(group, *trunk);
    const auto x = samples(job.rank(), 0).slice(0, 0, job.rank() == 0 ? 2 : 0);
    parallel.next_weight(job.rank() == 0 ? 1 : 0);
    const auto step = [&] { head->logits(trunk->forward(x)).pow(2).sum().backward(); };
    if (job.rank() == 0) {
      EXPECT_THROW(step(), PeerFailed);
    } else {
      EXPECT_THAT(text_of<InvalidArgument>(step),
                  AllOf(HasSubstr("ParallelLinear: this worker's loss has a weight of 0"),
                        HasSubstr("leave all weights at 1")));
    }
  });
}

/// What a frozen table would learn nobody misses.
TEST(SplitWeights, OfAFrozenTableAreNoneOfItsRows) {
  for (const auto& [workers, is_inside] : {std::pair{2, true}, {3, true}, {2, false}, {3, false}}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      ParallelEmbedding table(group, {.rows = 6, .dim = 3, .seed = 7, .dtype = kWide});
      SyncBatchNorm norm(group, torch::nn::BatchNormOptions(3));
      norm->to(kWide);
      auto head = linear(3, 2, 1);
      torch::nn::ModuleList model(norm, head);
      if (is_inside) model->push_back(table);
      table->weight.requires_grad_(false);
      DataParallel parallel(group, *model);
      parallel.next_weight(job.rank() == 1 ? 0 : 1);
      // Looked up before what learns, and beside it.
      const auto x = table->forward(torch::arange(4) + job.rank());
      const auto y = table->forward(torch::arange(4));
      (head->forward(norm->forward(x)) * y.slice(1, 0, 2)).pow(2).mean().backward();
      EXPECT_TRUE(head->weight.grad().defined());
      EXPECT_FALSE(table->weight.grad().defined());
    });
  }
}

/// Quotients of weights are in float32, as gradients are.
TEST(SplitWeights, AtTheEndsOfTheirRangeGiveNumbers) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto first = torch::nn::Linear(3, 4);
    SyncBatchNorm norm(group, torch::nn::BatchNormOptions(4));
    ParallelLinear head(group, {.features = 4, .classes = 4, .seed = 5});
    torch::nn::ModuleList model(first, norm, head);
    DataParallel parallel(group, *model);
    for (const int large : {0, 1}) {
      model->zero_grad();
      parallel.next_weight(job.rank() == large ? 1e15 : 1e-15);
      const auto x = samples(job.rank(), 0).to(torch::kFloat32);
      head->logits(norm->forward(first->forward(x))).pow(3).mean().backward();
      for (const auto& parameter : model->parameters()) {
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test::split_weights_cases
