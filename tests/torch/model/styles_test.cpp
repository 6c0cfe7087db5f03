// One training step written in several ways: the same bytes, one sync each. docs/data_parallel.md
// quotes them.

#include "comm/group_state.h"
#include "torch/training.h"
#include "tutti/partial.h"

namespace tutti::test::styles_cases {
namespace {

constexpr std::uint64_t kSteps = 4;
constexpr std::int64_t kRows = 27;  ///< of a step's batch: parts are uneven

/// What a way leaves on this worker.
struct Trained {
  std::vector<std::string> parameters;  ///< their hash after each step
  std::uint64_t exchanges = 0;          ///< of gradients, in all steps
  std::uint64_t calls = 0;              ///< of the group, in all steps
};

/// The same model, batch and parts on all workers, of which each computes its share.
class Program {
 public:
  Program(const Group& group, std::int64_t parts)
      : group_(group), count_(parts), share_(share_of(parts, group)) {
    torch::manual_seed(3);
    model_ = mlp();
  }

  Trained inside() {
    Trainer trainer(group_, *model_, rule(), {.shards = count_});
    auto trained = steps([&] {
      trainer.step([&](tutti::Shard& shard) {
        const auto& part = parts_[shard.index()];
        return shard.loss(loss_of(part), part.weight);
      });
    });
    trained.exchanges = static_cast<std::uint64_t>(trainer.traffic().collectives);
    return trained;
  }

  Trained in_halves() {
    Trainer trainer(group_, *model_, rule(), {.shards = count_});
    double norm = 0;
    auto trained = steps([&] {
      trainer.accumulate([&](tutti::Shard& shard) {
        const auto& part = parts_[shard.index()];
        return shard.loss(loss_of(part), part.weight);
      });
      norm = trainer.gradient_norm();  // nothing has changed yet
      trainer.apply();
    });
    EXPECT_GT(norm, 0);
    trained.exchanges = static_cast<std::uint64_t>(trainer.traffic().collectives);
    return trained;
  }

  Trained outside() {
    DataParallel parallel(group_, *model_);
    auto optimizer = torch_optimizer_of(*model_);
    const auto [begin, end] = share_;
    auto trained = steps([&] {
      auto step = parallel.accumulate({.micro_batches = end - begin});
      for (auto i = begin; i < end; ++i) {
        step.micro_batch(parts_[i].weight, [&] { return loss_of(parts_[i]); });
      }
      step.finish();
      optimizer.step();
      optimizer.zero_grad();
    });
    trained.exchanges = static_cast<std::uint64_t>(parallel.traffic().collectives);
    return trained;
  }

  Trained by_hand() {
    auto optimizer = torch_optimizer_of(*model_);
    const auto [begin, end] = share_;
    auto trained = steps([&] {
      auto mine = gradients_of(begin, end);
      const torch::NoGradGuard no_grad;
      const auto mean = std::move(mine).reduce();  // one all-reduce
      std::int64_t at = 0;
      for (auto& parameter : model_->parameters()) {
        parameter.mutable_grad() = mean.slice(0, at, at + parameter.numel()).view_as(parameter);
        at += parameter.numel();
      }
      optimizer.step();
    });
    trained.exchanges = trained.calls;
    return trained;
  }

 private:
  using Mean = Partial<Whole::mean>;

  // The gradients of parts [begin, end) in a row, added in halves, as the tree over parts has them.
  Mean gradients_of(std::int64_t begin, std::int64_t end) {
    if (end - begin > 1) {
      const auto middle = (begin + end) / 2;
      auto left = gradients_of(begin, middle);
      return combine(std::move(left), gradients_of(middle, end));
    }
    std::vector<torch::Tensor> row;
    for (const auto& gradient :
         torch::autograd::grad({loss_of(parts_[begin])}, model_->parameters())) {
      row.push_back(gradient.flatten());
    }
    return partial_mean(group_, torch::cat(row), parts_[begin].weight);
  }

  static torch::optim::SGDOptions settings() {
    return torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  }
  static Optimizer rule() { return torch_optimizer<torch::optim::SGD>(settings()); }
  static torch::optim::SGD torch_optimizer_of(const torch::nn::Module& model) {
    return torch::optim::SGD(model.parameters(), settings());
  }
  torch::Tensor loss_of(const BatchPart& part) {
    return torch::mse_loss(model_->forward(part.tensors[0]), part.tensors[1]);
  }

  Trained steps(const std::function<void()>& step) {
    Trained trained;
    const auto before = group_.state()->calls();
    for (std::uint64_t s = 0; s < kSteps; ++s) {
      const Batch batch(kRows, s);
      parts_ = Parts{split({batch.x, batch.y}, count_)};
      step();
      trained.parameters.push_back(parameters_sha256(*model_));
    }
    trained.calls = group_.state()->calls() - before;
    return trained;
  }

  /// By the numbers that shards and shares have.
  struct Parts {
    const BatchPart& operator[](std::int64_t i) const { return all[static_cast<std::size_t>(i)]; }
    std::vector<BatchPart> all;
  };

  Group group_;
  std::int64_t count_;
  std::pair<std::int64_t, std::int64_t> share_;
  torch::nn::Sequential model_ = nullptr;
  Parts parts_;
};

/// All ways, one after another; the hashes on rank 0.
std::string train(int workers, std::int64_t parts, bool by_hand = true) {
  return text_of_rank_0(workers, [=](const Job& job) {
    const Group group(job);
    const auto inside = Program(group, parts).inside();
    std::vector<Trained> others = {Program(group, parts).in_halves(),
                                   Program(group, parts).outside()};
    if (by_hand) others.push_back(Program(group, parts).by_hand());
    EXPECT_EQ(inside.exchanges, kSteps);
    for (const auto& way : others) {
      EXPECT_EQ(way.exchanges, kSteps);
      EXPECT_THAT(way.parameters, ::testing::ElementsAreArray(inside.parameters));
    }
    std::string text;
    for (const auto& hash : inside.parameters) text += hash;
    return text;
  });
}

TEST(Styles, EachOfThemSyncsOnceAndAllHaveTheSameBytes) {
  const auto alone = train(1, 8);
  EXPECT_EQ(alone.size(), 64 * kSteps);
  for (const int workers : {2, 4, 8}) EXPECT_EQ(train(workers, 8), alone) << workers;
  train(3, 12);  // any number of workers with a power of two each
  train(5, 10);
}

TEST(Styles, WithOtherNumbersThanPowersOfTwoTheTreeIsNotThatOfTheRanks) {
  // 6 parts are ((0+1) + (2+3)) + (4+5), and by hand (0 + (1+2)) + (3 + (4+5)).
  EXPECT_EQ(train(2, 6, false), train(1, 6, false));
  on_workers(2, [](const Job& job) {
    const Group group(job);
    EXPECT_NE(Program(group, 6).by_hand().parameters, Program(group, 6).inside().parameters);
  });
}

}  // namespace
}  // namespace tutti::test::styles_cases
