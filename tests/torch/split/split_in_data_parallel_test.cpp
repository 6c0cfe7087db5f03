// Layers that are split over the workers inside a DataParallel, beside one process that has the
// whole model and the joined batch.

#include "comm/group_state.h"
#include "torch/split/whole.h"

namespace tutti::test::split_in_data_parallel_cases {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kWords = 11;
constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kClasses = 7;
constexpr double kRate = 0.1;

/// A split table, a layer that all have, a norm over all samples, and a split classifier. Over a
/// group of one it is the whole.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Group& group)
      : table(register_module(
            "table", ParallelEmbedding(
                         group,
                         ParallelEmbeddingOptions{
                             .rows = kWords, .dim = kWidth, .seed = 3, .dtype = torch::kFloat64}))),
        middle(register_module("middle", torch::nn::Linear(kWidth, kWidth + 1))),
        norm(
            register_module("norm", SyncBatchNorm(group, torch::nn::BatchNormOptions(kWidth + 1)))),
        head(register_module(
            "head", ParallelLinear(group, ParallelLinearOptions{.features = kWidth + 1,
                                                                .classes = kClasses,
                                                                .seed = 4,
                                                                .dtype = torch::kFloat64}))) {
    middle->to(torch::kFloat64);
    norm->to(torch::kFloat64);
    const torch::NoGradGuard off;
    // Only rank 0's counts: others begin elsewhere.
    middle->weight.copy_(drawn(static_cast<std::uint64_t>(5 + group.rank()), {kWidth + 1, kWidth}));
    middle->bias.zero_();
  }
  torch::Tensor forward(const torch::Tensor& words) {
    return head->logits(norm->forward(middle->forward(table->forward(words))).tanh());
  }
  /// The mean over these samples; of none it is NaN, and has a weight of 0.
  torch::Tensor loss(const torch::Tensor& words, const torch::Tensor& labels) {
    return torch::nll_loss(torch::log_softmax(forward(words), 1), labels);
  }
  ParallelEmbedding table;
  torch::nn::Linear middle;
  SyncBatchNorm norm;
  ParallelLinear head;
};
TORCH_MODULE(Model);

void expect_same(const Model& mine, const Model& whole, const Group& group,
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

struct Samples {
  torch::Tensor words, labels;
  Samples(std::uint64_t seed, std::int64_t rows)
      : words(drawn_labels(100 + seed, kWords, {rows})),
        labels(drawn_labels(200 + seed, kClasses, {rows})) {}
};

/// The whole begins as rank 0's model: DataParallel sends what all have.
Model whole_of(const Group& group, const Model& mine) {
  Model whole(group.split(group.rank(), "alone"));
  const torch::NoGradGuard off;
  whole->middle->weight.copy_(mine->middle->weight);
  return whole;
}

class SplitInDataParallelOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, SplitInDataParallelOf, ::testing::ValuesIn(kNumbersOfWorkers));

TEST_P(SplitInDataParallelOf, StepsOfUnevenWeightedBatchesAreThoseOfOneProcess) {
  on_workers(GetParam(), [](const Job& job) {
    const Group group(job);
    Model mine(group);
    DataParallel parallel(group, *mine);
    auto whole = whole_of(group, mine);
    torch::optim::SGD optimizer(mine->parameters(), kRate);
    torch::optim::SGD whole_optimizer(whole->parameters(), kRate);
    const UnevenBatch batch(group);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const Samples all(step, batch.total());
      optimizer.zero_grad();
      parallel.next_weight(static_cast<double>(batch.rows()));
      mine->loss(batch.mine(all.words), batch.mine(all.labels)).backward();
      EXPECT_EQ(mine->head->gradient_weight(), 1) << "the weight was of one step";
      EXPECT_EQ(mine->norm->gradient_weight(), 1);
      EXPECT_TRUE(mine->table->weight.grad().is_coalesced());
      optimizer.step();
      whole_optimizer.zero_grad();
      whole->loss(all.words, all.labels).backward();
      whole_optimizer.step();
      expect_same(mine, whole, group, fmt::format("step {}", step));
    }
    EXPECT_THAT(parallel.touched(),
                ::testing::ElementsAre("middle.weight", "middle.bias", "norm.weight", "norm.bias"));
  });
}

TEST_P(SplitInDataParallelOf, DefaultWeightsMakeTheMeanOverWorkers) {
  on_workers(GetParam(), [](const Job& job) {
    Model mine((Group(job)));
    DataParallel parallel(job, *mine);
    const auto& group = parallel.group();
    auto whole = whole_of(group, mine);
    torch::optim::SGD optimizer(mine->parameters(), kRate);
    torch::optim::SGD whole_optimizer(whole->parameters(), kRate);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Samples all(step, 3 * group.size());
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

TEST_P(SplitInDataParallelOf, MicroBatchesCountByTheirWeights) {
  for (const auto divide : {Divide::by_weight, Divide::by_contributors, Divide::not_at_all}) {
    on_workers(GetParam(), [divide](const Job& job) {
      const Group group(job);
      Model mine(group);
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
          const Samples all(10 * step + static_cast<std::uint64_t>(part), batch.total());
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
    Model mine(group);
    DataParallel parallel(group, *mine);
    auto whole = whole_of(group, mine);
    const Samples all(1, 6);
    const auto part = [&](const torch::Tensor& x) {
      return x.slice(0, 3 * job.rank(), 3 * job.rank() + 3);
    };
    parallel.next_weight(job.rank() == 1 ? 0 : 2);
    const auto loss = mine->loss(part(all.words), part(all.labels));
    (job.rank() == 1 ? loss * std::nan("") : loss).backward();
    // Its samples count in the statistics of the norm.
    const auto log = torch::log_softmax(whole->forward(all.words), 1);
    torch::nll_loss(log.slice(0, 0, 3), all.labels.slice(0, 0, 3)).backward();
    expect_near(mine->head->weight.grad(), part_of(whole->head->weight.grad(), group), "head");
    expect_near(mine->norm->weight.grad(), whole->norm->weight.grad(), "norm");
    // What the norm gives back to samples of weight 0 goes no further than them.
    EXPECT_TRUE(torch::isfinite(mine->middle->weight.grad()).all().item<bool>());
    EXPECT_TRUE(torch::isfinite(mine->table->weight.grad().to_dense()).all().item<bool>());
  });
}

TEST(SplitInDataParallel, AModelThatIsSplitAllOverWorks) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    const ParallelLinearOptions options{
        .features = 3, .classes = 7, .seed = 1, .dtype = torch::kFloat64};
    ParallelLinear mine(group, options);
    ParallelLinear whole(group.split(job.rank(), "alone"), options);
    DataParallel parallel(group, *mine);
    torch::optim::SGD optimizer(mine->parameters(), kRate);
    torch::optim::SGD whole_optimizer(whole->parameters(), kRate);
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
  });
}

TEST(SplitInDataParallel, AGradientThatIsKeptIsRefusedAndNotDividedTwice) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    Model mine(group);
    DataParallel parallel(group, *mine);
    const Samples all(1, 4);
    const auto backward = [&] { mine->loss(all.words, all.labels).backward(); };
    backward();
    const auto kept = mine->head->weight.grad();
    const auto value = kept.clone();
    mine->middle->zero_grad();
    mine->norm->zero_grad();
    EXPECT_THAT(text_of<InvalidArgument>(backward),
                HasSubstr("parameter \"head.bias\" of \"model\" still holds a gradient as step 2"));
    EXPECT_TRUE(torch::equal(kept, value)) << "the program's own";
  });
  // In two kinds of cleared gradients the next backward may write.
  for (const bool to_none : {true, false}) {
    on_workers(2, [to_none](const Job& job) {
      const Group group(job);
      Model mine(group);
      DataParallel parallel(group, *mine);
      const Samples all(1, 4);
      torch::Tensor first;
      for (int step = 0; step < 3; ++step) {
        mine->zero_grad(to_none);
        mine->loss(all.words, all.labels).backward();
        if (step == 0) first = mine->head->weight.grad().clone();
        EXPECT_TRUE(torch::equal(mine->head->weight.grad(), first));
      }
    });
  }
}

TEST(SplitInDataParallel, OverTheOtherDimensionOfAGridItIsAnOrdinaryParameter) {
  for (const auto& [data_size, model_size] : {std::pair{2, 2}, std::pair{2, 3}, std::pair{3, 1}}) {
    on_workers(data_size * model_size, [&](const Job& job) {
      const Group world(job);
      const Group model = world.split(job.rank() / model_size, "model");
      const Group data = world.split(job.rank() % model_size, "data");
      const ParallelLinearOptions options{
          .features = 3, .classes = 7, .seed = 1, .dtype = torch::kFloat64};
      ParallelLinear mine(model, options);
      ParallelLinear whole(world.split(job.rank(), "alone"), options);
      DataParallel parallel(data, *mine);
      torch::optim::SGD optimizer(mine->parameters(), kRate);
      torch::optim::SGD whole_optimizer(whole->parameters(), kRate);
      for (std::uint64_t step = 0; step < 3; ++step) {
        // Workers of a model have a sample each, and data workers count by their weights.
        const auto x = drawn(step, {job.size(), 3});
        const double weight = 1 + data.rank();
        optimizer.zero_grad();
        parallel.next_weight(weight);
        mine->logits(x.slice(0, job.rank(), job.rank() + 1)).square().sum().backward();
        optimizer.step();
        EXPECT_THAT(parallel.touched(), ::testing::ElementsAre("weight", "bias"));
        whole_optimizer.zero_grad();
        auto sum = torch::zeros({}, torch::kFloat64);
        double weights = 0;
        for (int d = 0; d < data_size; ++d) {
          weights += 1 + d;
          sum =
              sum + whole->logits(x.slice(0, d * model_size, (d + 1) * model_size)).square().sum() *
                        (1 + d);
        }
        (sum / weights).backward();
        whole_optimizer.step();
        expect_near(mine->weight, part_of(whole->weight, model), fmt::format("step {}", step));
      }
    });
  }
}

TEST(SplitInDataParallel, AGroupThatHasSomeOfTheseWorkersIsRefused) {
  on_workers(3, [](const Job& job) {
    const Group world(job);
    const Group two = world.split(job.rank() == 2 ? 1 : 0, "two");
    torch::nn::Sequential model(torch::nn::Linear(3, 3),
                                ParallelLinear(two, {.features = 3, .classes = 7}));
    const auto text = text_of([&] { const DataParallel parallel(world, *model); });
    if (job.rank() == 2) {
      // It alone cannot know: the layer is over itself here, as in a grid of one.
      EXPECT_THAT(text, HasSubstr("has failed, and with it group \"world\""));
      return;
    }
    world.fail(text);
    EXPECT_THAT(text, HasSubstr("layer \"1\" is split over ranks 0 1, of which some, not all, are "
                                "among ranks 0 1 2"));
  });
}

TEST(SplitInDataParallel, AnAveragingPolicyBesideASplitLayerIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    Model mine(group);
    EXPECT_THAT(
        text_of<InvalidArgument>(
            [&] { const DataParallel parallel(group, *mine, {.averaging = local_sgd(2)}); }),
        HasSubstr("\"table.weight\" is split over the workers, whose steps have to be one"));
  });
}

TEST(SplitInDataParallel, WeightsAreOfOneDataParallel) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    Model mine(group);
    {
      DataParallel parallel(group, *mine);
      parallel.next_weight(5);
      EXPECT_EQ(mine->head->gradient_weight(), 5);
      EXPECT_EQ(mine->norm->gradient_weight(), 5);
    }
    DataParallel parallel(group, *mine);
    EXPECT_EQ(mine->head->gradient_weight(), 1);
    EXPECT_EQ(mine->norm->gradient_weight(), 1);
    auto scope = parallel.accumulate();
    const Samples all(1, 4);
    EXPECT_THROW(scope.micro_batch(3,
                                   [&]() -> torch::Tensor {
                                     EXPECT_EQ(mine->head->gradient_weight(), 3);
                                     throw std::runtime_error("no more");
                                   }),
                 std::runtime_error);
    EXPECT_EQ(mine->head->gradient_weight(), 1) << "a step that is dropped";
    mine->zero_grad();
    mine->loss(all.words, all.labels).backward();
    EXPECT_TRUE(mine->head->weight.grad().defined());
  });
}

TEST(SplitInDataParallel, AParameterThatIsTiedToASplitOneIsLeftAlone) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    Model mine(group);
    mine->register_parameter("tied", mine->head->weight);
    const auto before = mine->head->weight.detach().clone();
    DataParallel parallel(group, *mine);
    EXPECT_TRUE(torch::equal(mine->head->weight, before)) << "rank 0's was sent";
    mine->loss(Samples(1, 4).words, Samples(1, 4).labels).backward();
    EXPECT_EQ(parallel.touched().size(), 4);
  });
}

}  // namespace
}  // namespace tutti::test::split_in_data_parallel_cases
