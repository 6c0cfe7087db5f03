// Layers that are split over the workers inside a DataParallel, beside one process that has the
// whole model and the joined batch.

#include "torch/split/partly_split_model.h"

namespace tutti::test::split_in_data_parallel_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_same(const PartlySplitModel& mine, const PartlySplitModel& whole, const Group& group,
                 const std::string& what) {
  expect_near(mine->table->weight, part_of(whole->table->weight, group), what + ", table");
  expect_near(mine->head->weight, part_of(whole->head->weight, group), what + ", head");
  expect_near(mine->head->bias, part_of(whole->head->bias, group), what + ", bias");
  expect_near(mine->middle->weight, whole->middle->weight, what + ", middle");
  expect_near(mine->norm->weight, whole->norm->weight, what + ", norm");
  expect_near(mine->norm->bias, whole->norm->bias, what + ", norm's bias");
  expect_near(mine->norm->running_mean, whole->norm->running_mean, what + ", running mean");
  expect_near(mine->norm->running_var, whole->norm->running_var, what + ", running variance");
}

/// The whole begins as rank 0's model: DataParallel sends what all have.
PartlySplitModel whole_of(const Group& group, const PartlySplitModel& mine) {
  PartlySplitModel whole(group.split(group.rank(), "alone"));
  const torch::NoGradGuard off;
  whole->middle->weight.copy_(mine->middle->weight);
  return whole;
}

class SplitInDataParallelOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, SplitInDataParallelOf, ::testing::ValuesIn(kNumbersOfWorkers));

/// Five steps, beside the whole.
void train_uneven_batches(const Job& job) {
  const Group group(job);
  PartlySplitModel mine(group);
  DataParallel parallel(group, *mine);
  auto whole = whole_of(group, mine);
  torch::optim::SGD optimizer(mine->parameters(), kSplitRate);
  torch::optim::SGD whole_optimizer(whole->parameters(), kSplitRate);
  const UnevenBatch batch(group);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const WordSamples all(step, batch.total());
    optimizer.zero_grad();
    parallel.next_weight(static_cast<double>(batch.rows()));
    mine->loss(batch.mine(all.words), batch.mine(all.labels)).backward();
    EXPECT_EQ(mine->head->gradient_weight(), 1) << "the weight was of one step";
    EXPECT_TRUE(mine->table->weight.grad().is_coalesced());
    optimizer.step();
    whole_optimizer.zero_grad();
    whole->loss(all.words, all.labels).backward();
    whole_optimizer.step();
    expect_same(mine, whole, group, fmt::format("step {}", step));
  }
  EXPECT_THAT(parallel.touched(),
              ::testing::ElementsAre("middle.weight", "middle.bias", "norm.weight", "norm.bias"));
}

// promise: split_module.h#SplitModule, sync_batch_norm.h#SyncBatchNorm
TEST_P(SplitInDataParallelOf, StepsOfUnevenWeightedBatchesAreThoseOfOneProcess) {
  on_workers(GetParam(), train_uneven_batches);
}

// promise: sync_batch_norm.h#SyncBatchNorm
TEST_P(SplitInDataParallelOf, DefaultWeightsMakeTheMeanOverWorkers) {
  on_workers(GetParam(), [](const Job& job) {
    PartlySplitModel mine((Group(job)));
    DataParallel parallel(job, *mine);
    const auto& group = parallel.group();
    auto whole = whole_of(group, mine);
    torch::optim::SGD optimizer(mine->parameters(), kSplitRate);
    torch::optim::SGD whole_optimizer(whole->parameters(), kSplitRate);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const WordSamples all(step, 3 * group.size());
      const auto first = 3 * group.rank();
      optimizer.zero_grad();
      mine->loss(all.words.slice(0, first, first + 3), all.labels.slice(0, first, first + 3))
          .backward();
      optimizer.step();
      whole_optimizer.zero_grad();
      whole->loss(all.words, all.labels).backward();
      whole_optimizer.step();
      expect_same(mine, whole, group, fmt::format("step {}", step));
    }
  });
}

// promise: data_parallel.h#DataParallel
TEST_P(SplitInDataParallelOf, MicroBatchesCountByTheirWeights) {
  for (const auto divide : {Divide::by_weight, Divide::by_contributors, Divide::not_at_all}) {
    on_workers(GetParam(), [divide](const Job& job) {
      const Group group(job);
      PartlySplitModel mine(group);
      DataParallel parallel(group, *mine, {.divide = divide});
      auto whole = whole_of(group, mine);
      torch::optim::SGD optimizer(mine->parameters(), 0.01);
      torch::optim::SGD whole_optimizer(whole->parameters(), 0.01);
      const UnevenBatch batch(group);
      const auto weight_of = [](int part, std::int64_t rows) {
        return static_cast<double>(rows) * (part + 1);
      };
      for (std::uint64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        whole_optimizer.zero_grad();
        auto scope = parallel.accumulate();
        double weights = 0;
        torch::Tensor sum = torch::zeros({}, torch::kFloat64);
        for (int part = 0; part < 3; ++part) {
          const WordSamples all(10 * step + static_cast<std::uint64_t>(part), batch.total());
          scope.micro_batch(weight_of(part, batch.rows()), [&] {
            return mine->loss(batch.mine(all.words), batch.mine(all.labels));
          });
          weights += weight_of(part, batch.total());
          sum = sum + whole->loss(all.words, all.labels) * weight_of(part, batch.total());
        }
        scope.finish();
        optimizer.step();
        (divide == Divide::not_at_all ? sum : sum / weights).backward();
        whole_optimizer.step();
        expect_same(mine, whole, group, fmt::format("step {}", step));
      }
    });
  }
}

TEST(SplitInDataParallel, AWorkerOfWeightZeroGivesNothingEvenWhereItsLossIsNaN) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplitModel mine(group);
    DataParallel parallel(group, *mine);
    auto whole = whole_of(group, mine);
    const WordSamples all(1, 6);
    const auto part = [&](const torch::Tensor& x) {
      return x.slice(0, 3 * job.rank(), 3 * job.rank() + 3);
    };
    // In training its samples count in the statistics of the norm: see below.
    mine->norm->eval();
    whole->norm->eval();
    parallel.next_weight(job.rank() == 1 ? 0 : 2);
    const auto loss = mine->loss(part(all.words), part(all.labels));
    (job.rank() == 1 ? loss * std::nan("") : loss).backward();
    const auto log = torch::log_softmax(whole->forward(all.words), 1);
    torch::nll_loss(log.slice(0, 0, 3), all.labels.slice(0, 0, 3)).backward();
    expect_near(mine->head->weight.grad(), part_of(whole->head->weight.grad(), group), "head");
    expect_near(mine->norm->weight.grad(), whole->norm->weight.grad(), "norm");
    expect_near(mine->middle->weight.grad(), whole->middle->weight.grad(), "middle");
    expect_near(mine->table->weight.grad().to_dense(),
                part_of(whole->table->weight.grad().to_dense(), group), "table");
  });
}

/// A layer whose results have others' samples in them, and before it what its samples come from.
struct MixedSamplesImpl : torch::nn::Module {
  explicit MixedSamplesImpl(const Group& group)
      : table(register_module(
            "table",
            ParallelEmbedding(group,
                              ParallelEmbeddingOptions{
                                  .rows = 6, .dim = 4, .seed = 3, .dtype = torch::kFloat64}))),
        trunk(register_module("trunk", torch::nn::Linear(4, 4))),
        norm(register_module("norm", SyncBatchNorm(group, torch::nn::BatchNormOptions(4)))),
        head(register_module(
            "head",
            ParallelLinear(
                group, ParallelLinearOptions{
                           .features = 4, .classes = 6, .seed = 4, .dtype = torch::kFloat64}))) {
    trunk->to(torch::kFloat64);
    norm->to(torch::kFloat64);
  }
  ParallelEmbedding table;
  torch::nn::Linear trunk;
  SyncBatchNorm norm;
  ParallelLinear head;
};
TORCH_MODULE(MixedSamples);

// What others' losses gave to the samples of a worker of weight 0 was lost without a word.
TEST(SplitInDataParallel, GradientsThatAWorkerOfNoWeightWouldLoseAreRefused) {
  for (const int workers : {2, 3}) {
    for (const bool in_scope : {false, true}) {
      on_workers(workers, [in_scope](const Job& job) {
        const Group group(job);
        MixedSamples model(group);
        DataParallel parallel(group, *model);
        const bool counts = job.rank() + 1 < job.size();
        const auto seed = static_cast<std::uint64_t>(job.rank());
        const auto run = [&](double weight, const std::function<torch::Tensor()>& loss) {
          model->zero_grad();
          if (in_scope) {
            auto scope = parallel.accumulate();
            scope.micro_batch(weight, loss);
            scope.finish();
          } else {
            parallel.next_weight(weight);
            loss().backward();
          }
        };
        const auto refused = [&](const std::string& what,
                                 const std::function<torch::Tensor()>& loss) {
          const auto step = [&] { run(counts ? 2 : 0, loss); };
          if (counts) {
            EXPECT_THAT(text_of<PeerFailed>(step), HasSubstr("weight of 0")) << what;
          } else {
            EXPECT_THAT(text_of<InvalidArgument>(step),
                        AllOf(HasSubstr("weight of 0"), HasSubstr(what),
                              HasSubstr("multiply each worker's loss by its rows · N ÷ all rows")));
          }
        };
        const auto rows = [&] { return model->trunk->forward(drawn(seed, {3, 4})); };
        refused("SyncBatchNorm", [&] { return model->norm->forward(rows()).pow(3).sum(); });
        refused("ParallelLinear", [&] { return model->head->forward(rows()).square().sum(); });
        // Nobody but the table has what is lost.
        refused("ParallelEmbedding", [&] {
          return model->norm->forward(model->table->forward(drawn_labels(seed, 6, {3})))
              .pow(3)
              .sum();
        });
        // The next step is right.
        run(1 + job.rank(), [&] { return model->norm->forward(rows()).pow(3).sum(); });
        EXPECT_EQ(parallel.report().weight, job.size() * (job.size() + 1) / 2);
      });
    }
  }
}

TEST(SplitInDataParallel, SamplesOfAWorkerOfNoWeightThatComeFromNoParameterCountInTheStatistics) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      const auto of = [](const Group& members) {
        SyncBatchNorm norm(members, torch::nn::BatchNormOptions(4));
        norm->to(torch::kFloat64);
        return norm;
      };
      auto mine = of(group);
      auto whole = of(group.split(job.rank(), "alone"));
      DataParallel parallel(group, *mine);
      const auto x = drawn(1, {3 * job.size(), 4});
      const bool counts = job.size() == 1 || job.rank() + 1 < job.size();
      parallel.next_weight(counts ? 3 : 0);
      mine->forward(x.slice(0, 3 * job.rank(), 3 * job.rank() + 3)).pow(3).mean().backward();
      const auto counting = 3 * std::max(job.size() - 1, 1);
      whole->forward(x).slice(0, 0, counting).pow(3).mean().backward();
      expect_near(mine->weight.grad(), whole->weight.grad(), "weight");
    });
  }
}

/// No parameter is left for the step itself.
void train_what_is_split_all_over(const Job& job) {
  const Group group(job);
  const ParallelLinearOptions options{
      .features = 3, .classes = 7, .seed = 1, .dtype = torch::kFloat64};
  ParallelLinear mine(group, options);
  ParallelLinear whole(group.split(job.rank(), "alone"), options);
  DataParallel parallel(group, *mine);
  torch::optim::SGD optimizer(mine->parameters(), kSplitRate);
  torch::optim::SGD whole_optimizer(whole->parameters(), kSplitRate);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto x = drawn(step, {9, 3});
    const auto first = 3 * job.rank();
    optimizer.zero_grad();
    mine->logits(x.slice(0, first, first + 3)).square().mean().backward();
    optimizer.step();
    whole_optimizer.zero_grad();
    whole->logits(x).square().mean().backward();
    whole_optimizer.step();
    expect_near(mine->weight, part_of(whole->weight, group), fmt::format("step {}", step));
  }
  EXPECT_EQ(parallel.report().weight, 3);
}

/// join() makes steps, and no calls of layers: the other worker waits there for this one.
TEST(SplitInDataParallel, AJoinWhileOthersAreInALayerSaysWhatToDo) {
  const auto texts = ends_of(2, [](const Group& group) {
    ParallelLinear head(group, ParallelLinearOptions{.features = 3, .classes = 7});
    DataParallel parallel(group, *head, {.name = "faces", .deadline = std::chrono::seconds(5)});
    if (group.rank() == 0) parallel.join([] {});
    head->logits(torch::ones({2, 3}));
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("step 1 of \"faces\""), Not(HasSubstr("\"\"")),
                              HasSubstr("a worker that has no data calls forward() and backward() "
                                        "with an empty batch of weight 0")));
}

// promise: split_module.h#SplitModule
TEST(SplitInDataParallel, AModelThatIsSplitAllOverWorks) {
  on_workers(3, train_what_is_split_all_over);
}

TEST(SplitInDataParallel, OnSeveralHostsItIsTheSame) {
  for (const auto& body : {train_uneven_batches, train_what_is_split_all_over}) {
    const auto outcome = run_process_ranks(3,
                                           [&](const Job& job) {
                                             at::set_num_threads(1);
                                             body(job);
                                           },
                                           {.hosts = even_hosts(3, 2)});
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

}  // namespace
}  // namespace tutti::test::split_in_data_parallel_cases
