// The data loader of libtorch under a DataParallel: each worker's share of every global batch.

#include "torch/training.h"

namespace tutti::test::distributed_sampler_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Samples = std::vector<std::int64_t>;

/// Inputs that the index decides; the target is the index.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::int64_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t index) override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(index);
    return {torch::randn({6}, generator, torch::kFloat64),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(count_); }

 private:
  std::int64_t count_;
};

auto loader_of(const Group& group, std::int64_t size, const DistributedSamplerOptions& options) {
  auto data = Numbers(size).map(torch::data::transforms::Stack<>());
  DistributedSampler sampler(group, *data.size(), options);
  return torch::data::make_data_loader(std::move(data), std::move(sampler),
                                       torch::data::DataLoaderOptions().workers(2));
}

/// Of all workers, one after another; −1 ends each worker's.
Samples joined(const Group& group, const Samples& mine) {
  constexpr std::int64_t kRoom = 64;
  auto padded = mine;
  padded.resize(kRoom, -1);
  Samples all(static_cast<std::size_t>(kRoom * group.size()));
  group.all_gather({padded.data(), kRoom, DType::int64},
                   {all.data(), kRoom * group.size(), DType::int64});
  std::erase(all, -1);
  return all;
}

/// Every epoch of `size` samples by `workers` is, batch by batch, what SampleOrder says.
void expect_order(int workers, std::int64_t size, const SampleOrder& order) {
  on_workers(workers, [&](const Job& job) {
    const Group group(job, "loader");
    const auto loader = loader_of(group, size, {.batch = 16, .seed = 5, .order = order});
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto expected = order.of_epoch(size, 5, epoch);
      auto at = loader->begin();
      for (std::size_t from = 0; from < expected.size(); from += 16) {
        const auto to = std::min(from + 16, expected.size());
        Samples mine;
        if (at != loader->end()) {
          const auto* const first = at->target.data_ptr<std::int64_t>();
          mine.assign(first, first + at->target.numel());
          ++at;
        }
        const auto [begin, end] = share_of(static_cast<std::int64_t>(to - from), job);
        EXPECT_EQ(static_cast<std::int64_t>(mine.size()), end - begin);
        EXPECT_EQ(joined(group, mine), Samples(expected.begin() + static_cast<std::int64_t>(from),
                                               expected.begin() + static_cast<std::int64_t>(to)));
      }
      EXPECT_TRUE(at == loader->end());
    }
  });
}

// promise: distributed_sampler.h#DistributedSampler, distributed_sampler.h#reset
TEST(DistributedSampler, WorkersShareEachGlobalBatchAndEachEpochHasAnOrderOfItsOwn) {
  for (const int workers : {1, 2, 3, 5}) expect_order(workers, 50, {});  // 16, 16, 16, 2
  expect_order(3, 48, SampleOrder::sequential());
  expect_order(3, 4, SampleOrder::weighted({1, 2, 3, 4}, 37));
  EXPECT_NE(SampleOrder().of_epoch(50, 5, 0), SampleOrder().of_epoch(50, 5, 1));
}

// promise: distributed_sampler.h#DistributedSampler, distributed_sampler.h#batches
TEST(DistributedSampler, SixtyFourOnThreeWorkersStaySixtyFour) {
  on_workers(3, [](const Job& job) {
    DistributedSampler sampler(Group(job, "loader"), 200, {.batch = 64});
    std::int64_t count[] = {static_cast<std::int64_t>(sampler.next(1)->size())};
    EXPECT_EQ(count[0], job.rank() == 0 ? 22 : 21);
    Group(job, "count").all_reduce({count, 1, DType::int64}, Reduction::sum);
    EXPECT_EQ(count[0], 64);
    EXPECT_EQ(sampler.batches(), 4);
  });
}

/// Parameters after two epochs in float64, the last batch smaller than the number of workers.
torch::Tensor trained(const Job& job) {
  torch::manual_seed(1);
  auto model = mlp();
  model->to(torch::kFloat64);
  auto optimizer = momentum_and_decay(model->parameters());
  auto data = Numbers(34).map(torch::data::transforms::Stack<>());
  std::int64_t batches = 0;

  tutti::DataParallel parallel(job, *model);
  tutti::DistributedSampler sampler(parallel.group(), *data.size(), {.batch = 16, .seed = 5});
  auto loader = torch::data::make_data_loader(std::move(data), std::move(sampler),
                                              torch::data::DataLoaderOptions().workers(2));
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      parallel.next_weight(static_cast<double>(batch.data.size(0)));
      model->forward(batch.data).square().mean().backward();
      optimizer.step();
      ++batches;
    }
    parallel.join([&] {
      optimizer.step();
      optimizer.zero_grad();
    });
  }
  EXPECT_EQ(batches, job.rank() < 2 ? 6 : 4);
  EXPECT_EQ(parallel.report().step, 8);  // and two in which all had called join()
  expect_equal_everywhere(parallel.group(), *model);
  return torch::nn::utils::parameters_to_vector(model->parameters()).detach().clone();
}

// promise: distributed_sampler.h#DistributedSampler, distributed_sampler.h#next
TEST(DistributedSampler, UnevenTailsAreDrainedAndGiveThePlainLoopsParameters) {
  torch::manual_seed(1);
  auto plain = mlp();
  plain->to(torch::kFloat64);
  auto optimizer = momentum_and_decay(plain->parameters());
  Numbers data(34);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto order = SampleOrder().of_epoch(34, 5, epoch);
    for (std::size_t from = 0; from < order.size(); from += 16) {
      std::vector<torch::Tensor> rows;
      for (auto i = from; i < std::min<std::size_t>(from + 16, order.size()); ++i) {
        rows.push_back(data.get(static_cast<std::size_t>(order[i])).data);
      }
      optimizer.zero_grad();
      plain->forward(torch::stack(rows)).square().mean().backward();
      optimizer.step();
    }
  }
  const auto expected = torch::nn::utils::parameters_to_vector(plain->parameters()).detach();
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      EXPECT_LT((trained(job) - expected).abs().max().item<double>(), 1e-13);
    });
  }
}

// promise: distributed_sampler.h#batches, distributed_sampler.h#epoch, distributed_sampler.h#reset
TEST(DistributedSampler, WhatIsNoWholeBatchMayBeLeftOut) {
  on_workers(2, [](const Job& job) {
    const Group group(job, "loader");
    DistributedSampler sampler(group, 21, {.batch = 8, .drop_last = true});
    EXPECT_EQ(sampler.batches(), 2);
    for (int epoch = 0; epoch < 2; ++epoch) {
      sampler.reset();
      EXPECT_EQ(sampler.epoch(), epoch);
      EXPECT_EQ(sampler.next(1)->size(), 4U);
      EXPECT_EQ(sampler.next(1)->size(), 4U);
      EXPECT_FALSE(sampler.next(1));
    }
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { DistributedSampler(group, 7, {.batch = 8, .drop_last = true}); }),
                HasSubstr("an epoch of 7 samples has no whole batch of 8"));
  });
}

/// What a program saves and another loads.
void hand_over(const DistributedSampler& from, DistributedSampler& to) {
  std::stringstream file;
  torch::serialize::OutputArchive out;
  from.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  to.load(in);
}

// promise: distributed_sampler.h#epoch, distributed_sampler.h#save
TEST(DistributedSampler, GoesOnWhereAnotherStood) {
  on_workers(2, [](const Job& job) {
    const Group group(job, "loader");
    DistributedSampler sampler(group, 30, {.batch = 8, .seed = 3});
    sampler.reset();
    sampler.reset();
    sampler.next(1);
    DistributedSampler other(group, 30, {.batch = 8, .seed = 3});
    hand_over(sampler, other);
    EXPECT_EQ(other.epoch(), 1);
    EXPECT_EQ(other.next(1), sampler.next(1));
    other.reset();
    DistributedSampler later(group, 30, {.batch = 8, .seed = 3, .first_epoch = 2});
    later.reset();
    EXPECT_EQ(later.epoch(), 2);
    EXPECT_EQ(other.next(1), later.next(1));
  });
}

// The loader has a copy: what the program saved was the first epoch, again and again.
// promise: distributed_sampler.h#DistributedSampler, distributed_sampler.h#Position
TEST(DistributedSampler, TheProgramsOwnKnowsWhereTheOneInTheLoaderStands) {
  on_workers(2, [](const Job& job) {
    const Group group(job, "loader");
    DistributedSampler sampler(group, 30, {.batch = 8, .seed = 3});
    auto loader = torch::data::make_data_loader(Numbers(30).map(torch::data::transforms::Stack<>()),
                                                sampler, torch::data::DataLoaderOptions());
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : *loader) EXPECT_GT(batch.data.size(0), 0);
    }
    EXPECT_EQ(sampler.epoch(), 1);
    EXPECT_EQ(sampler.batches(), 4);
    DistributedSampler other(group, 30, {.batch = 8, .seed = 3});
    hand_over(sampler, other);
    other.reset();
    EXPECT_EQ(other.epoch(), 2);
    DistributedSampler moved(std::move(other));
    moved.reset();
    EXPECT_EQ(other.epoch(), 3);
  });
}

// promise: distributed_sampler.h#DistributedSampler
TEST(DistributedSampler, WorkersThatDifferAreTold) {
  on_workers(3, [](const Job& job) {
    const Group group(job, "loader");
    const auto refusal = [&](std::int64_t size, const DistributedSamplerOptions& options) {
      return text_of<Mismatch>([&] { DistributedSampler(group, size, options); });
    };
    const bool last = job.rank() == 2;
    EXPECT_EQ(refusal(last ? 31 : 30, {.batch = 8}),
              "DistributedSampler: rank 2 has another data set size than rank 0");
    EXPECT_THAT(refusal(30, {.batch = last ? 9 : 8}), HasSubstr("another batch than"));
    EXPECT_THAT(refusal(30, {.batch = 8, .seed = last ? 1U : 0U}), HasSubstr("another seed than"));
    EXPECT_THAT(refusal(30, {.batch = 8, .drop_last = last}), HasSubstr("another drop_last than"));
    EXPECT_THAT(refusal(30, {.batch = 8, .first_epoch = last ? 1 : 0}),
                HasSubstr("another first_epoch than"));
    EXPECT_THAT(
        refusal(30, {.batch = 8, .order = last ? SampleOrder::sequential() : SampleOrder()}),
        HasSubstr("another order than"));
  });
}

// promise: distributed_sampler.h#next
TEST(DistributedSampler, ABatchSizeOfTheLoadersOwnIsRefused) {
  on_workers(2, [](const Job& job) {
    auto data = Numbers(30).map(torch::data::transforms::Stack<>());
    const auto loader = torch::data::make_data_loader(
        std::move(data), DistributedSampler(Group(job, "loader"), 30, {.batch = 8}),
        torch::data::DataLoaderOptions().batch_size(8));
    EXPECT_THAT(text_of<InvalidArgument>([&] { *loader->begin(); }),
                HasSubstr("the data loader has a batch_size of 8 of its own: leave it alone"));
  });
}

// promise: distributed_sampler.h#DistributedSampler
TEST(DistributedSampler, OptionsThatMakeNoSenseAreRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job, "loader");
    const auto refusal = [&](std::int64_t size, const DistributedSamplerOptions& options) {
      return text_of<InvalidArgument>([&] { DistributedSampler(group, size, options); });
    };
    EXPECT_THAT(refusal(30, {}), HasSubstr("batches of 0 out of 30 samples"));
    EXPECT_THAT(refusal(0, {.batch = 8}), HasSubstr("batches of 8 out of 0 samples"));
    EXPECT_THAT(refusal(30, {.batch = 8, .first_epoch = -1}), HasSubstr("from epoch -1 on"));
  });
}

}  // namespace
}  // namespace tutti::test::distributed_sampler_cases
