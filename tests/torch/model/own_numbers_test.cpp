// A program's own numbers in a checkpoint: a rate that is reduced when the loss stands still, as
// docs/checkpoints.md has it, resumes where it stood.

#include <limits>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::own_numbers_cases {
namespace {

struct Plateau {
  void keep_in(Trainer& trainer) {
    trainer.keep("factor", factor);
    trainer.keep("best_loss", best_loss);
    trainer.keep("patience", patience);
  }
  void follow(double loss) {
    if (loss < best_loss) {
      best_loss = loss;
      patience = 0;
    } else if (++patience == 2) {
      factor *= 0.5;
      patience = 0;
    }
  }
  double factor = 1;
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t patience = 0;
};

std::string train(int workers, const std::string& folder, std::int64_t until, bool keeps) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    Plateau plateau;
    Trainer trainer(job, *model, Adam{.lr = 0.05},
                    {.shards = 3, .schedule = Schedule("plateau", [&](std::int64_t) {
                                    return plateau.factor;
                                  })});
    if (keeps) plateau.keep_in(trainer);
    if (!folder.empty()) trainer.load(folder);
    while (trainer.steps() < until) {
      const auto result = trainer.step([&](Shard& shard) {
        return rows_of(shard, model, Batch(12, 7 + static_cast<std::uint64_t>(shard.step()) % 3));
      });
      plateau.follow(result.loss);
    }
    if (!folder.empty()) trainer.save(folder);
    EXPECT_LT(plateau.factor, 1) << "nothing was reduced";
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
  // Numbers that are not kept come to the same bytes, unless the run is stopped.
  EXPECT_EQ(train(2, "", 24, false), straight);
  const TemporaryFolder folder;
  train(1, folder.file("run"), 13, false);
  EXPECT_NE(train(1, folder.file("run"), 24, false), straight);
}

}  // namespace
}  // namespace tutti::test::own_numbers_cases
