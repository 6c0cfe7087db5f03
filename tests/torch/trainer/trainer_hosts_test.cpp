// A Trainer whose workers are on several hosts: what programs do by habit.

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "support/log_capture.h"
#include "support/spread.h"
#include "torch/training.h"

namespace tutti::test::trainer_hosts_cases {
namespace {

using ::testing::HasSubstr;

/// Two hosts of as many workers each, which are processes; links between them go over Gloo.
void on_two_hosts(int workers, const std::function<void(const Job&)>& body) {
  const Spread spread(2);
  on_workers(workers, body);
}

struct Training {
  explicit Training(const Job& job, TrainerOptions options = {.shards = 4})
      : model((torch::manual_seed(3), mlp())), trainer(job, *model, Adam{.lr = 0.01}, options) {}
  StepResult step() {
    const Batch batch(8, 7);
    return trainer.step([&](Shard& shard) { return rows_of(shard, model, batch); });
  }
  torch::nn::Sequential model;
  Trainer trainer;
};

void write(Training& training) { training.model->parameters()[0].data().mul_(0.5); }

/// What step 16 says where the worker, or with -1 each, writes to a parameter before step
/// `written`.
std::string said_after_write(const Job& job, int writer, int written) {
  Training training(job);
  for (int step = 1; step < 16; ++step) {
    if (step == written && job.rank() == writer) write(training);
    training.step();
  }
  if (written == 16 && (writer < 0 || job.rank() == writer)) write(training);
  return text_of([&] { training.step(); });
}

TEST(TrainerOnHosts, AWriteByHandOnOneHostIsFoundHoweverOldItIs) {
  for (const auto& [writer, written] : {std::pair{0, 16}, {2, 16}, {0, 10}, {3, 10}}) {
    on_two_hosts(4, [&, writer = writer, written = written](const Job& job) {
      EXPECT_THAT(said_after_write(job, writer, written),
                  HasSubstr("parameter \"0.weight\" of rank 2 differs from that of rank 0"));
    });
  }
}

/// Then hosts have equal values.
TEST(TrainerOnHosts, AWriteByHandOnAllIsFoundAsOnOne) {
  on_two_hosts(2, [](const Job& job) {
    EXPECT_THAT(said_after_write(job, -1, 16),
                HasSubstr("parameter \"0.weight\" of \"model\" was changed between steps"));
  });
}

/// Replicas of other logical workers are on other hosts.
TEST(TrainerOnHosts, AWriteByHandToAReplicaIsFound) {
  on_two_hosts(4, [](const Job& job) {
    Training training(job, {.shards = 4, .logical_workers = 2, .averaging = local_sgd(100)});
    for (int step = 1; step < 16; ++step) training.step();
    if (job.rank() == 0) training.model->parameters().back().data().mul_(0.5);
    EXPECT_THAT(text_of([&] { training.step(); }),
                HasSubstr("parameter \"2.bias\" of \"model\" was changed between steps"));
  });
}

TEST(TrainerOnHosts, ADigestOfTheStateThatIsAskedForAgainNeedsNobodyElse) {
  on_two_hosts(2, [](const Job& job) {
    const Group group(job, "of the test");
    std::optional<Training> training;
    training.emplace(
        job,
        TrainerOptions{.shards = 4, .compression = {.codec = int8_codec()}, .logical_workers = 2});
    for (int step = 0; step < 3; ++step) training->step();
    const auto first = training->trainer.state_sha256();
    if (job.rank() == 1) training.reset();
    group.barrier();
    if (training) {
      EXPECT_EQ(training->trainer.state_sha256(), first);
    }
    group.barrier();
  });
}

/// It has all objects of the worker, whose link has threads that it lacks.
// promise: errors#children-of-a-worker
TEST(TrainerOnHosts, AForkedChildOfAHostsFirstWorkerLeavesItsLinkAlone) {
  on_two_hosts(4, [](const Job& job) {
    auto training = std::make_unique<Training>(job);
    training->step();
    const auto child = ::fork();
    if (child == 0) {
      training.reset();
      ::_exit(7);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    for (int step = 0; step < 3; ++step) training->step();
  });
}

/// Also where a program makes neither a Trainer nor a DataParallel.
TEST(TrainerOnHosts, CollectivesOfAGroupTakeGloo) {
  on_two_hosts(2, [](const Job& job) {
    const LogCapture log;
    const Group group(job);
    auto ones = torch::ones({1 << 18});
    all_reduce(group, ones, Reduction::sum);
    EXPECT_EQ(ones[0].item<float>(), 2);
    EXPECT_EQ(log.count("links between hosts: gloo"), job.rank() == 0 ? 1 : 0);
  });
}

}  // namespace
}  // namespace tutti::test::trainer_hosts_cases
