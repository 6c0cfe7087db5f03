// Which parameters a DataParallel takes for split, and what becomes of their gradients between
// steps.

#include "torch/split/partly_split_model.h"

namespace tutti::test::split_marking_cases {
namespace {

using ::testing::HasSubstr;

// promise: data_parallel.h#DataParallel
TEST(SplitInDataParallel, AGradientThatIsKeptIsRefusedAndNotDividedTwice) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplitModel mine(group);
    DataParallel parallel(group, *mine);
    const WordSamples all(1, 4);
    const auto backward = [&] { mine->loss(all.words, all.labels).backward(); };
    backward();
    const auto kept = mine->head->weight.grad();
    const auto value = kept.clone();
    mine->middle->zero_grad();
    mine->norm->zero_grad();
    EXPECT_THAT(
        text_of<InvalidArgument>(backward),
        HasSubstr("parameter \"head.weight\" of \"model\" still holds a gradient as step 2"));
    EXPECT_TRUE(torch::equal(kept, value)) << "the program's own";
  });
  // In two kinds of cleared gradients the next backward may write.
  for (const bool to_none : {true, false}) {
    on_workers(2, [to_none](const Job& job) {
      const Group group(job);
      PartlySplitModel mine(group);
      DataParallel parallel(group, *mine);
      const WordSamples all(1, 4);
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

// promise: data_parallel.h#DataParallel
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
      torch::optim::SGD optimizer(mine->parameters(), kSplitRate);
      torch::optim::SGD whole_optimizer(whole->parameters(), kSplitRate);
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

// promise: data_parallel.h#DataParallel
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

// promise: averaged_parallel.h#AveragedParallel
TEST(SplitInDataParallel, ASplitLayerInAnAveragedParallelIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplitModel mine(group);
    EXPECT_THAT(
        text_of<InvalidArgument>(
            [&] { const AveragedParallel parallel(group, *mine, local_sgd(2)); }),
        HasSubstr("\"table.weight\" is split over the workers, whose steps have to be one"));
  });
}

TEST(SplitInDataParallel, WeightsAreOfOneDataParallel) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplitModel mine(group);
    {
      DataParallel parallel(group, *mine);
      parallel.next_weight(5);
      EXPECT_EQ(mine->head->gradient_weight(), 5);
    }
    DataParallel parallel(group, *mine);
    EXPECT_EQ(mine->head->gradient_weight(), 1);
    auto scope = parallel.accumulate();
    const WordSamples all(1, 4);
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

// promise: data_parallel.h#DataParallel, split_module.h#SplitModule
TEST(SplitInDataParallel, AParameterThatIsTiedToASplitOneIsLeftAlone) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplitModel mine(group);
    mine->register_parameter("tied", mine->head->weight);
    const auto before = mine->head->weight.detach().clone();
    DataParallel parallel(group, *mine);
    EXPECT_TRUE(torch::equal(mine->head->weight, before)) << "rank 0's was sent";
    mine->loss(WordSamples(1, 4).words, WordSamples(1, 4).labels).backward();
    EXPECT_EQ(parallel.touched().size(), 4);
  });
}

}  // namespace
}  // namespace tutti::test::split_marking_cases
