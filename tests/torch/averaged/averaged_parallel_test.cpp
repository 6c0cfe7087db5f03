// AveragedParallel: every worker trains by itself, and copies become one when the averaging policy
// says so. Against models that are trained one by one and averaged by hand.

#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/int8_model.h"
#include "torch/training.h"

namespace tutti::test::averaged_parallel_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kSteps = 7;

/// The mean along the tree, as docs/numerics.md has it, in the type of its elements.
template <class Number>
Number mean_of(const std::vector<Number>& values) {
  const std::function<Number(std::size_t, std::size_t)> fold = [&](std::size_t begin,
                                                                   std::size_t end) {
    if (end - begin == 1) return values[begin];
    std::size_t half = 1;
    while (2 * half < end - begin) half *= 2;
    return fold(begin, begin + half) + fold(begin + half, end);
  };
  return static_cast<Number>(static_cast<double>(fold(0, values.size())) /
                             static_cast<double>(values.size()));
}

std::vector<float> values_of(const torch::Tensor& tensor) {
  const auto on_host = tensor.detach().cpu().contiguous();
  return {on_host.data_ptr<float>(), on_host.data_ptr<float>() + on_host.numel()};
}

void set_values(const torch::Tensor& tensor, std::vector<float> values) {
  const torch::NoGradGuard no_grad;
  tensor.copy_(torch::from_blob(values.data(), tensor.sizes(), torch::device(torch::kCPU)));
}

/// Of all copies, elementwise; and what `combine` makes of (mean, element).
template <class Combine>
void become_one(const std::vector<torch::Tensor>& copies, const Combine& combine) {
  std::vector<std::vector<float>> all;
  for (const auto& copy : copies) all.push_back(values_of(copy));
  std::vector<float> combined;
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    std::vector<float> values;
    for (const auto& each : all) values.push_back(each[i]);
    combined.push_back(combine(mean_of(values), static_cast<std::int64_t>(i)));
  }
  for (const auto& copy : copies) set_values(copy, combined);
}

/// What worker r does in a step.
void train_alone(torch::nn::Sequential& model, torch::optim::SGD& optimizer, std::uint64_t step,
                 int rank) {
  optimizer.zero_grad();
  const Batch batch(6, 100 * step + static_cast<std::uint64_t>(rank));
  batch.loss(model, 0, 6).backward();
  optimizer.step();
}

/// All workers' models in one process.
struct Fleet {
  explicit Fleet(int workers) {
    for (int r = 0; r < workers; ++r) {
      torch::manual_seed(1);
      models.push_back(mlp());
      optimizers.push_back(
          std::make_unique<torch::optim::SGD>(momentum_and_decay(models.back()->parameters())));
    }
  }
  void step(std::uint64_t number) {
    for (std::size_t r = 0; r < models.size(); ++r) {
      train_alone(models[r], *optimizers[r], number, static_cast<int>(r));
    }
  }
  std::vector<torch::Tensor> copies(std::size_t parameter) const {
    std::vector<torch::Tensor> all;
    for (const auto& model : models) all.push_back(model->parameters()[parameter]);
    return all;
  }
  std::vector<torch::nn::Sequential> models;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
};

/// Steps of the real thing, compared with the fleet after each; `average` is what its copies do.
void expect_as_fleet(const AveragingPolicyPointer& policy, int workers,
                     const std::function<void(Fleet&, std::int64_t step)>& average,
                     const AveragedParallelOptions& options = {}) {
  on_workers(workers, [&](const Job& job) {
    torch::manual_seed(1 + job.rank());  // rank 0's weights must win
    auto model = mlp();
    AveragedParallel parallel(job, *model, policy, options);
    auto optimizer = momentum_and_decay(model->parameters());
    Fleet fleet(workers);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const auto number = static_cast<std::uint64_t>(step);
      train_alone(model, optimizer, number, job.rank());
      parallel.average_parameters();
      EXPECT_EQ(parallel.report().step, step);
      fleet.step(number);
      average(fleet, step);
      const auto mine = static_cast<std::size_t>(job.rank());
      EXPECT_EQ(parameters_sha256(*model), parameters_sha256(*fleet.models[mine]))
          << "step " << step << ", rank " << job.rank() << " of " << workers;
    }
  });
}

// promise: averaging.h#values, averaged_parallel.h#average_parameters
// promise: averaged_parallel.h#AveragedParallel
TEST(AveragedParallel, LocalSgdIsTrainingAloneAndAveragingByHand) {
  for (const int workers : {1, 2, 3, 5, 8}) {
    expect_as_fleet(local_sgd(3, 1), workers, [](Fleet& fleet, std::int64_t step) {
      if (step != 1 && step != 4 && step != 7) return;
      for (std::size_t p = 0; p < 4; ++p) {
        become_one(fleet.copies(p), [](float mean, std::int64_t) { return mean; });
      }
    });
  }
}

// promise: averaged_parallel.h#AveragedParallel
TEST(AveragedParallel, PartialUpdateTakesTheBucketsInTurn) {
  // 102 and 17 elements, then 51 and 3.
  expect_as_fleet(partial_update(), 3,
                  [](Fleet& fleet, std::int64_t step) {
                    const std::size_t first = step % 2 == 1 ? 0 : 2;
                    for (const auto p : {first, first + 1}) {
                      become_one(fleet.copies(p), [](float mean, std::int64_t) { return mean; });
                    }
                  },
                  {.fusion = 110});
}

/// The parameters' values that every worker starts from.
std::vector<std::vector<float>> initial_values() {
  torch::manual_seed(1);
  std::vector<std::vector<float>> values;
  for (const auto& parameter : mlp()->parameters()) values.push_back(values_of(parameter));
  return values;
}

std::vector<std::vector<float>> zeros_like(std::vector<std::vector<float>> values) {
  for (auto& each : values) std::ranges::fill(each, 0.0F);
  return values;
}

// promise: averaging.h#before
TEST(AveragedParallel, BlockMomentumByItsFormula) {
  for (const bool nesterov : {false, true}) {
    auto before = initial_values();
    auto kept = zeros_like(before);
    const auto averaging =
        block_momentum(2, 0, {.momentum = 0.5, .rate = 0.75, .nesterov = nesterov});
    expect_as_fleet(averaging, 3, [&](Fleet& fleet, std::int64_t step) {
      if (step % 2 != 0) return;
      for (std::size_t p = 0; p < 4; ++p) {
        become_one(fleet.copies(p), [&](float mean, std::int64_t i) {
          auto& b = before[p][static_cast<std::size_t>(i)];
          auto& d = kept[p][static_cast<std::size_t>(i)];
          const double delta = 0.5 * double{d} + 0.75 * (double{mean} - double{b});
          double value = double{b} + delta;
          if (nesterov) value += 0.5 * (delta - double{d});
          d = static_cast<float>(delta);
          b = static_cast<float>(value);
          return b;
        });
      }
    });
  }
}

// In two fragments: 102 and 71 elements. In float64 torch's SGD of what all copies were before,
// less their mean; its buffer holds −Δ / rate.
// promise: averaging.h#diloco
TEST(AveragedParallel, DilocoInFragmentsByItsFormula) {
  for (const int workers : {1, 2, 3, 5, 8}) {
    constexpr double kRate = 0.75;
    constexpr double kMomentum = 0.5;
    auto before = initial_values();
    auto kept = zeros_like(before);
    const auto averaging =
        diloco(4, {.rate = kRate, .momentum = kMomentum, .fragments = 2, .warm_up = 1});
    expect_as_fleet(averaging, workers, [&](Fleet& fleet, std::int64_t step) {
      for (std::size_t p = 0; p < 4; ++p) {
        const bool is_warm_up = step == 1;
        const bool is_due = is_warm_up || (step - 1) % 4 == (p == 0 ? 2 : 0);
        if (!is_due) continue;
        become_one(fleet.copies(p), [&](float mean, std::int64_t i) {
          auto& b = before[p][static_cast<std::size_t>(i)];
          auto& d = kept[p][static_cast<std::size_t>(i)];
          if (is_warm_up) return b = mean;
          const double delta = kMomentum * double{d} + kRate * (double{mean} - double{b});
          double value = double{b} + delta;
          value += kMomentum * (delta - double{d});
          d = static_cast<float>(delta);
          b = static_cast<float>(value);
          return b;
        });
      }
    });
  }
}

// promise: averaging.h#own
TEST(AveragedParallel, AMeanThatOverlapsByItsFormula) {
  for (const int workers : {1, 2, 3, 5, 8}) {
    auto before = initial_values();
    auto kept = zeros_like(before);
    auto in_flight = before;
    const auto averaging =
        diloco(3, {.rate = 0.75, .momentum = 0.5, .warm_up = 0, .overlap = 2, .own = 0.25});
    expect_as_fleet(averaging, workers, [&](Fleet& fleet, std::int64_t step) {
      for (std::size_t p = 0; p < before.size(); ++p) {
        const auto copies = fleet.copies(p);
        std::vector<std::vector<float>> all;
        for (const auto& copy : copies) all.push_back(values_of(copy));
        for (std::size_t i = 0; i < before[p].size(); ++i) {
          if (step == 5) {
            auto& b = before[p][i];
            auto& d = kept[p][i];
            const double delta = 0.5 * double{d} + 0.75 * (double{in_flight[p][i]} - double{b});
            double value = double{b} + delta;
            value += 0.5 * (delta - double{d});
            d = static_cast<float>(delta);
            b = static_cast<float>(value);
            for (auto& own : all) {
              own[i] = static_cast<float>(0.25 * double{own[i]} + 0.75 * double{b});
            }
          }
          if (step % 3 != 0) continue;
          std::vector<float> values;
          for (const auto& own : all) values.push_back(own[i]);
          in_flight[p][i] = mean_of(values);
        }
        for (std::size_t r = 0; r < copies.size(); ++r) set_values(copies[r], all[r]);
      }
    });
  }
}

/// What 8 bits hold of the values, one block; the rest is left in `residual`.
std::vector<float> sent_of(std::vector<float> values, std::vector<float>& residual) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  const auto sent = as_int8(values);
  for (std::size_t i = 0; i < values.size(); ++i) residual[i] = values[i] - sent[i];
  return sent;
}

// promise: averaging.h#sends_int8
TEST(AveragedParallel, DifferencesIn8BitsByTheirFormula) {
  for (const int workers : {1, 2, 3, 5, 8}) {
    auto before = initial_values();
    std::vector<std::vector<std::vector<float>>> residuals;  // per parameter: ranks', the mean's
    for (const auto& values : before) {
      residuals.emplace_back(static_cast<std::size_t>(workers) + 1,
                             std::vector<float>(values.size()));
    }
    // The mean is taken as it is.
    const auto averaging = diloco(2, {.warm_up = 100, .int8 = true});
    expect_as_fleet(averaging, workers, [&](Fleet& fleet, std::int64_t) {
      for (std::size_t p = 0; p < before.size(); ++p) {
        const auto copies = fleet.copies(p);
        std::vector<std::vector<float>> sent;
        for (std::size_t r = 0; r < copies.size(); ++r) {
          auto difference = values_of(copies[r]);
          for (std::size_t i = 0; i < before[p].size(); ++i) difference[i] -= before[p][i];
          sent.push_back(sent_of(std::move(difference), residuals[p][r]));
        }
        std::vector<float> means;
        for (std::size_t i = 0; i < before[p].size(); ++i) {
          std::vector<float> values;
          for (const auto& one : sent) values.push_back(one[i]);
          means.push_back(mean_of(values));
        }
        const auto mean = sent_of(std::move(means), residuals[p].back());
        become_one(copies, [&](float, std::int64_t element) {
          const auto i = static_cast<std::size_t>(element);
          return before[p][i] = before[p][i] + mean[i];
        });
      }
    });
  }
}

TEST(AveragedParallel, DifferencesIn8BitsAreCountedAsTheyAreSent) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    AveragedParallel parallel(job, *model, diloco(2, {.warm_up = 1, .int8 = true}));
    auto optimizer = momentum_and_decay(model->parameters());
    train_alone(model, optimizer, 1, job.rank());
    parallel.average_parameters();
    // 102, 17, 51 and 3 values; each worker gets the messages of the two others.
    const std::size_t bytes = 173 + 4 * 4;
    EXPECT_EQ(parallel.report().max_sent_bytes, bytes);
    EXPECT_EQ(parallel.traffic().last_step[0].bytes, 3 * (1 + 2) * bytes);
  });
}

// promise: averaged_parallel.h#bytes_held, averaged_parallel.h#touched, averaged_parallel.h#traffic
TEST(AveragedParallel, OnlyWhatSomebodyMovedIsSentAndCounted) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(2));
    EXPECT_THAT(parallel.touched(), IsEmpty());
    const auto move = [&](std::size_t p) {
      const torch::NoGradGuard no_grad;
      model->parameters()[p].add_(1);
    };
    const auto start = model->parameters()[1].clone();
    if (job.rank() == 1) move(1);
    parallel.average_parameters();
    EXPECT_EQ(parallel.report().collectives, 0);
    EXPECT_EQ(parallel.report().max_sent_bytes, 0u);
    EXPECT_EQ(parallel.report().parameters_skipped, 4);
    parallel.average_parameters();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.bias"));
    EXPECT_TRUE(torch::equal(model->parameters()[1], ((start + 1) + start) / 2));
    EXPECT_EQ(parallel.report().collectives, 1);
    EXPECT_EQ(parallel.report().max_sent_bytes, 17u * 4);
    EXPECT_EQ(parallel.report().dense_bytes, 173u * 4);
    EXPECT_EQ(parallel.report().parameters_touched, 1);
    parallel.average_parameters();
    parallel.average_parameters();  // nothing moved since
    EXPECT_THAT(parallel.touched(), IsEmpty());
    EXPECT_EQ(parallel.report().collectives, 0);
    const auto traffic = parallel.traffic();
    EXPECT_EQ(traffic.steps, 4);
    EXPECT_EQ(traffic.collectives, 1);
    ASSERT_EQ(traffic.all_steps.size(), 1u);
    EXPECT_EQ(traffic.all_steps[0].bytes, 2u * 2 * 17 * 4);            // there and back, of both
    EXPECT_EQ(traffic.all_steps[0].bytes_dense, 2u * 2 * 2 * 17 * 4);  // in both steps
    // Each parameter as it was, and room for all of them, at multiples of 64 bytes; of a model on a
    // device the host's copy, too.
    const std::size_t copied = start.is_cpu() ? 0 : 173 * 4;
    EXPECT_EQ(parallel.bytes_held(), 448u + 128 + 256 + 64 + 704 + copied);
  });
}

// promise: averaging.h#values
TEST(AveragedParallel, SixteenAndSixtyFourBitsAreRoundedOnce) {
  on_workers(3, [](const Job& job) {
    auto model = torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
    model[0]->to(torch::kBFloat16);
    model[1]->to(torch::kFloat64);
    AveragedParallel parallel(job, *model, local_sgd(1));
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < 4; ++p) model->parameters()[p].fill_(1 + 0.3 * (job.rank() + 1));
    parallel.average_parameters();
    std::vector<float> small;
    std::vector<double> large;
    for (int r = 0; r < 3; ++r) {
      small.push_back(torch::tensor(1 + 0.3 * (r + 1)).to(torch::kBFloat16).item<float>());
      large.push_back(1 + 0.3 * (r + 1));
    }
    EXPECT_TRUE(torch::equal(model->parameters()[0],
                             torch::full({2, 3}, mean_of(small)).to(torch::kBFloat16)));
    EXPECT_EQ(model->parameters()[2][0][0].item<double>(), mean_of(large));
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// Block momentum of what all copies were before, in each type: by its formula.
// promise: averaging.h#states
TEST(AveragedParallel, WhatAnAveragingPolicyKeepsIsInTheTypeOfTheSum) {
  on_workers(2, [](const Job& job) {
    // One bucket: the types become one after the other.
    auto model = torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2),
                                       torch::nn::Linear(2, 1));
    model[0]->to(torch::kBFloat16);
    model[1]->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(1);
    AveragedParallel parallel(job, *model, block_momentum(1, 0, {.momentum = 0.5, .rate = 0.75}));
    std::vector<double> before(6, 1);
    std::vector<double> delta(6, 0);
    for (int step = 1; step <= 4; ++step) {
      for (auto& parameter : model->parameters()) parameter.add_(0.3 * (job.rank() + step));
      parallel.average_parameters();
      for (std::size_t p = 0; p < 6; ++p) {
        const auto type = model->parameters()[p].scalar_type();
        const auto in_type = [&](double x, torch::ScalarType kind) {
          return torch::tensor(x, torch::kFloat64).to(kind).to(torch::kFloat64).item<double>();
        };
        const auto wide = type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
        double sum = 0;
        for (int r = 0; r < 2; ++r) {
          sum += (torch::tensor(before[p], torch::kFloat64).to(type) + 0.3 * (r + step))
                     .to(torch::kFloat64)
                     .item<double>();
        }
        const double next = 0.5 * delta[p] + 0.75 * (in_type(sum / 2, wide) - before[p]);
        before[p] = in_type(in_type(before[p] + next, wide), type);
        delta[p] = in_type(next, wide);
        EXPECT_NEAR(model->parameters()[p].flatten()[0].item<double>(), before[p],
                    type == torch::kFloat64   ? 1e-15
                    : type == torch::kFloat32 ? 1e-7
                                              : 0)
            << "step " << step << ", parameter " << p;
      }
    }
    expect_equal_everywhere(parallel.group(), *model);
  });
}

TEST(AveragedParallel, ATableAndWhatIsExcluded) {
  on_workers(2, [](const Job& job) {
    auto model =
        torch::nn::Sequential(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)),
                              torch::nn::Linear(2, 1));
    const torch::NoGradGuard no_grad;
    AveragedParallel parallel(
        job, *model, local_sgd(1),
        {.per_replica = [](const std::string& name) { return name == "1.bias"; }});
    model->parameters()[0].fill_(job.rank());
    model->parameters()[2].fill_(job.rank());
    parallel.average_parameters();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.weight"));
    EXPECT_EQ(model->parameters()[0][4][1].item<double>(), 0.5);
    EXPECT_EQ(model->parameters()[2].item<double>(), job.rank());
  });
}

// Steps are those of the program: it goes on where files of its own say.
// promise: averaged_parallel.h#first_step
TEST(AveragedParallel, TheFirstStepMayHaveAnyNumber) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(4), {.first_step = 7});
    const torch::NoGradGuard no_grad;
    model->parameters()[0].add_(1);
    parallel.average_parameters();
    EXPECT_EQ(parallel.report().step, 7);
    EXPECT_THAT(parallel.touched(), IsEmpty());
    parallel.average_parameters();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.weight"));
    EXPECT_EQ(parallel.traffic().all_steps[0].bytes_dense, 2u * 2 * 2 * 102 * 4);
  });
}

/// Throws, or makes infinite, what it is asked for in its second round.
class Spoiling final : public AveragingPolicy {
 public:
  explicit Spoiling(bool throws) : throws_(throws) {}
  std::string name() const override { return "spoiling"; }
  bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
  void combine(const AveragingRound& round) const override {
    if (round.values[0] < 2) return;
    if (throws_) throw std::runtime_error("of no use");
    round.values[0] = INFINITY;
  }

 private:
  bool throws_;
};

// promise: averaged_parallel.h#average_parameters
TEST(AveragedParallel, AnErrorWhileCopiesBecomeOneEndsIt) {
  on_workers(2, [](const Job& job) {
    for (const bool throws : {true, false}) {
      auto model = torch::nn::Linear(2, 1);
      AveragedParallel parallel(job, *model, std::make_shared<Spoiling>(throws));
      const torch::NoGradGuard no_grad;
      model->weight.fill_(1 + 0.5 * job.rank());
      parallel.average_parameters();
      model->weight.fill_(2 + job.rank());
      const std::string why =
          "averaging spoiling, parameter \"weight\": " +
          std::string(throws ? "of no use" : "what its copies become is not finite");
      EXPECT_EQ(text_of<Mismatch>([&] { parallel.average_parameters(); }), why);
      EXPECT_EQ(text_of<Mismatch>([&] { parallel.average_parameters(); }), why);
    }
    // A sum that overflows.
    auto model = torch::nn::Linear(2, 1);
    AveragedParallel parallel(job, *model, local_sgd(1));
    const torch::NoGradGuard no_grad;
    model->weight.fill_(3e38);
    EXPECT_THAT(text_of<Mismatch>([&] { parallel.average_parameters(); }),
                HasSubstr("is not finite"));
  });
}

TEST(AveragedParallel, AWorkerWhoseModelWasMovedIsNamedByTheOthers) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(1));
    const torch::NoGradGuard no_grad;
    model->parameters()[1].add_(job.rank());
    const auto mine = model->parameters()[0].data();
    if (job.rank() == 1) model->parameters()[0].set_data(mine.clone());
    const auto text = text_of([&] { parallel.average_parameters(); });
    EXPECT_THAT(text, HasSubstr("parameter \"0.weight\" of \"model\" was moved"));
    if (job.rank() == 0) {
      EXPECT_THAT(text, HasSubstr("average_parameters() in step 1 of \"model\": rank 1 failed"));
    }
    if (job.rank() == 1) model->parameters()[0].set_data(mine);
    parallel.average_parameters();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.bias"));
  });
}

// Nobody waits for others in the step in which a mean comes: each worker looks for itself.
TEST(AveragedParallel, AModelThatWasMovedIsRefusedWhereAMeanComes) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto policy = diloco(3, {.rate = 1, .momentum = 0, .warm_up = 0, .overlap = 1, .own = 0});
    AveragedParallel parallel(job, *model, policy);
    const torch::NoGradGuard no_grad;
    auto parameter = model->parameters()[0];
    parameter.fill_(job.rank());
    for (int step = 1; step <= 3; ++step) parallel.average_parameters();
    const auto mine = parameter.data();
    if (job.rank() == 1) parameter.set_data(mine.clone());
    const auto text = text_of<InvalidArgument>([&] { parallel.average_parameters(); });
    if (job.rank() == 1) {
      EXPECT_THAT(text, HasSubstr("parameter \"0.weight\" of \"model\" was moved"));
      EXPECT_TRUE(mine.eq(1).all().item<bool>());
      parameter.set_data(mine);
    } else {
      EXPECT_EQ(text, "");
    }
    parallel.average_parameters();  // where the mean did not come, it comes now
    EXPECT_TRUE(torch::allclose(parameter, torch::full_like(parameter, 0.5F)));
  });
}

// promise: averaged_parallel.h#average_parameters
TEST(AveragedParallel, AStepThatWasLeftOutIsFoundWhereStepsAreNumbered) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(2));
    parallel.average_parameters(1);
    if (job.rank() == 1) {
      EXPECT_EQ(text_of<InvalidArgument>([&] { parallel.average_parameters(3); }),
                "average_parameters(3): the step that ends is 2; average_parameters() is called at "
                "the end of each");
    }
    parallel.average_parameters(2);
    EXPECT_EQ(parallel.report().step, 2);
  });
}

// promise: averaged_parallel.h#report
TEST(AveragedParallel, TheReportSaysWhoWasLastAndWhoWaited) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(2));
    parallel.average_parameters();
    EXPECT_EQ(parallel.report().waits, 0);
    if (job.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    parallel.average_parameters();
    EXPECT_EQ(parallel.report().last_worker, 1);
    if (job.rank() == 0) {
      EXPECT_GT(parallel.report().wait_seconds, 0.04);
    }
  });
}

// promise: averaged_parallel.h#average_parameters, averaged_parallel.h#sync_buffers
TEST(AveragedParallel, BuffersAreRankZerosWhereSomethingIsDue) {
  on_workers(2, [](const Job& job) {
    for (const bool each_round : {true, false}) {
      auto model = torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
      here(*model);
      AveragedParallel parallel(job, *model, local_sgd(2), {.sync_buffers = each_round});
      auto mean = model->named_buffers()["1.running_mean"];
      mean.fill_(5 + job.rank());
      parallel.average_parameters();
      EXPECT_EQ(mean[0].item<double>(), 5 + job.rank());
      parallel.average_parameters();
      EXPECT_EQ(mean[0].item<double>(), each_round ? 5 : 5 + job.rank());
      parallel.sync_buffers();
      EXPECT_EQ(mean[0].item<double>(), 5);
    }
  });
}

// promise: averaged_parallel.h#average_parameters, error.h#Diverged
TEST(AveragedParallel, AValueThatIsNotFiniteIsNamedAndNothingBecomesOne) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(1));
    const torch::NoGradGuard no_grad;
    model->parameters()[0].add_(job.rank());
    if (job.rank() == 1) model->parameters()[3][2] = NAN;
    const auto before = parameters_sha256(*model);
    EXPECT_THAT(
        text_of<Diverged>([&] { parallel.average_parameters(); }),
        HasSubstr(
            "average_parameters() in step 1 of \"model\": parameter \"2.bias\" of rank 1 is not "
            "finite; no copies became one"));
    EXPECT_EQ(parameters_sha256(*model), before);
    EXPECT_THAT(parallel.touched(), IsEmpty());
    if (job.rank() == 1) model->parameters()[3][2] = 0;
    parallel.average_parameters();
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// promise: averaging.h#validate, averaged_parallel.h#average_parameters
// promise: averaged_parallel.h#first_step
TEST(AveragedParallel, WhatMakesNoSenseIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto refused = [&](const AveragingPolicyPointer& policy,
                             const AveragedParallelOptions& options = {}) {
      return text_of<InvalidArgument>(
          [&] { AveragedParallel parallel(job, *model, policy, options); });
    };
    EXPECT_THAT(refused(nullptr), HasSubstr("AveragedParallel without an averaging policy"));
    class Nameless final : public AveragingPolicy {
     public:
      explicit Nameless(std::string name) : name_(std::move(name)) {}
      std::string name() const override { return name_; }
      bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
      int states() const override { return -1; }

     private:
      std::string name_;
    };
    EXPECT_THAT(refused(std::make_shared<Nameless>("")),
                HasSubstr("an averaging policy must have a name"));
    EXPECT_THAT(refused(std::make_shared<Nameless>("odd")), HasSubstr("averaging odd: -1 states"));
    class Split final : public AveragingPolicy {
     public:
      std::string name() const override { return "split"; }
      bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
      std::int64_t fragments() const override { return -2; }
    };
    EXPECT_THAT(refused(std::make_shared<Split>()), HasSubstr("averaging split: -2 fragments"));
    EXPECT_THAT(refused(diloco(8, {.fragments = 5})), HasSubstr("5 fragments of 4 parameters"));
    EXPECT_THAT(refused(local_sgd(2), {.fusion = 0}), HasSubstr("fusion must be at least 1"));
    EXPECT_THAT(refused(local_sgd(2), {.first_step = 0}),
                HasSubstr("first_step 0: steps count from 1"));
    EXPECT_THAT(refused(local_sgd(2), {.deadline = std::chrono::milliseconds(0)}),
                HasSubstr("the deadline must be positive"));
    AveragedParallel parallel(job, *model, local_sgd(2));
    const AveragedParallel moved(std::move(parallel));
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.average_parameters(); }),
                HasSubstr("this AveragedParallel was moved from"));
  });
}

// promise: averaged_parallel.h#mean
TEST(AveragedParallel, MeansOfValuesAreThoseOfADataParallel) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      auto one = mlp();
      auto other = mlp();
      const AveragedParallel averaged(job, *one, local_sgd(1));
      const DataParallel parallel(job, *other);
      const double value = 0.1 * (job.rank() + 1);
      EXPECT_EQ(averaged.mean(value, 3 + job.rank()), parallel.mean(value, 3 + job.rank()));
      EXPECT_THAT(text_of<InvalidArgument>([&] { averaged.mean(value, -1); }), HasSubstr("weight"));
    });
  }
}

// promise: averaged_parallel.h#AveragedParallel
TEST(AveragedParallel, OneWrapperIsOfEachWorkerTheSame) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    EXPECT_THAT(text_of<Mismatch>([&] {
                  if (job.rank() == 0) {
                    const DataParallel parallel(job, *model);
                  } else {
                    const AveragedParallel parallel(job, *model, local_sgd(2));
                  }
                }),
                HasSubstr("setting \"wrapper\" is AveragedParallel, not DataParallel"));
  });
}

// promise: averaging.h#name
TEST(AveragedParallel, PoliciesThatDifferAreFoundAtTheStart) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    EXPECT_THAT(text_of<Mismatch>(
                    [&] { AveragedParallel parallel(job, *model, local_sgd(2 + job.rank())); }),
                HasSubstr("local-sgd:3"));
  });
}

}  // namespace
}  // namespace tutti::test::averaged_parallel_cases
