// A program's own numbers in a checkpoint: a rate that is reduced when the loss stands still, as
// docs/checkpoints.md has it, resumes where it stood.

#include <limits>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::own_numbers_cases {
namespace {

/// Factor, least loss so far, steps since then: in a buffer, or in variables of the program.
struct Plateau {
  explicit Plateau(torch::nn::Module* model) {
    if (model == nullptr) return;
    numbers = model->register_buffer("plateau", numbers);
  }
  double factor() const { return numbers[0].item<double>(); }
  void follow(Trainer& trainer, double loss, bool saved) {
    auto next = numbers.clone();
    if (loss < next[1].item<double>()) {
      next[1] = loss;
      next[2] = 0;
    } else if ((next[2] += 1).item<double>() == 2) {
      next[0] *= 0.5;
      next[2] = 0;
    }
    if (saved) {
      trainer.edit([&] { numbers.copy_(next); });
    } else {
      numbers = next;
    }
  }
  torch::Tensor numbers =
      torch::tensor({1.0, std::numeric_limits<double>::infinity(), 0.0}, torch::kFloat64);
};

std::string train(int workers, const std::string& folder, std::int64_t until, bool saved) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    Plateau plateau(saved ? &*model : nullptr);
    Trainer trainer(job, *model, Adam{.lr = 0.05},
                    {.shards = 3, .schedule = Schedule("plateau", [&](std::int64_t) {
                                    return plateau.factor();
                                  })});
    if (!folder.empty()) trainer.load(folder);
    while (trainer.steps() < until) {
      const auto result = trainer.step([&](Shard& shard) {
        return rows_of(shard, model, Batch(12, 7 + static_cast<std::uint64_t>(shard.step()) % 3));
      });
      plateau.follow(trainer, result.loss, saved);
    }
    if (!folder.empty()) trainer.save(folder);
    EXPECT_LT(plateau.factor(), 1) << "nothing was reduced";
    return parameters_sha256(*model);
  });
}

TEST(OwnNumbers, APlateauScheduleThatIsStoppedGoesOnToTheSameBytes) {
  const auto straight = train(1, "", 24, true);
  for (const int workers : {1, 2, 3}) {
    const TemporaryFolder folder;
    train(workers % 3 + 1, folder.file("run"), 13, true);
    EXPECT_EQ(train(workers, folder.file("run"), 24, true), straight) << workers;
  }
  // The same numbers in the program's variables come to the same bytes, unless it is stopped.
  EXPECT_EQ(train(2, "", 24, false), straight);
  const TemporaryFolder folder;
  train(1, folder.file("run"), 13, false);
  EXPECT_NE(train(1, folder.file("run"), 24, false), straight);
}

}  // namespace
}  // namespace tutti::test::own_numbers_cases
