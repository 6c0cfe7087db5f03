// Whatever happens at whatever moment of a save, a complete good checkpoint is found afterwards.

#include <optional>
#include <string>

#include <gmock/gmock.h>

#include "run/files/faulty_files.h"
#include "run/files/samples.h"
#include "support/log_capture.h"
#include "support/running_command.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

enum class Ending { saved, refused, crashed };

/// Two checkpoints are there; a third is saved under a fault.
struct Trial {
  Fault fault = Fault::crash;
  int at = 1;
  std::int64_t step = 200;  ///< 200 is there already
  bool power_cut = false;
  std::optional<int> keep = 2;
};

struct Outcome {
  Ending ending = Ending::saved;
  bool over = false;         ///< the save has fewer effects
  std::string problem = {};  ///< empty if all is as it should be
};

bool holds(const Checkpoint& checkpoint, const CheckpointContent& content) {
  return checkpoint.manifest().step == content.step &&
         checkpoint.manifest().facts == content.facts && bytes_of(checkpoint) == bytes_of(content);
}

bool is_left(const std::string& name) {
  return name.front() == '.' && name != ".lock" && name != ".run";
}

std::string problem_after(const std::string& dir, Ending ending, const CheckpointContent& before,
                          const CheckpointContent& after) {
  const auto files = std::make_shared<FaultyFiles>();
  CheckpointStore store(files, dir, {.keep = 2});
  const NewestGood found = store.newest_good_of_last_run();
  if (!found.passed_over.empty()) return "a bad one is listed: " + found.passed_over.front();
  if (!found.checkpoint) return "no good one is left";
  const bool is_new = holds(*found.checkpoint, after);
  if (!is_new && !holds(*found.checkpoint, before)) return "neither the old one nor the new one";
  if (ending == Ending::saved && !is_new) return "saved, yet not there";
  if (ending == Ending::refused) {
    if (is_new) return "said to have failed, yet there";
    for (const std::string& name : files->names_in(dir))
      if (is_left(name)) return "left behind: " + name;
  }
  for (const std::int64_t step : store.steps()) store.open(step);
  // The next save works and leaves nothing hidden.
  const SampleCheckpoint next(400, 9);
  store.save(next.content);
  if (!holds(store.open(400), next.content)) return "the next one is wrong";
  for (const std::string& name : files->names_in(dir))
    if (is_left(name)) return "not put away: " + name;
  return store.steps().size() == 2 ? "" : "not two are kept";
}

Outcome run(const Trial& trial) {
  const TemporaryFolder folder;
  const std::string dir = folder.file("runs/a");
  const SampleCheckpoint first(100, 1), before(200, 2);
  SampleCheckpoint after(trial.step, 3);
  after.content.run = "another";  // noted before it is published
  CheckpointStore healthy(std::make_shared<FaultyFiles>(), dir);
  healthy.save(first.content);
  healthy.save(before.content);
  const auto files = std::make_shared<FaultyFiles>(trial.fault, trial.at);
  Outcome outcome;
  try {
    CheckpointStore(files, dir, {.keep = trial.keep}).save(after.content);
  } catch (const IoError&) {
    outcome.ending = Ending::refused;
  } catch (const Crash&) {
    outcome.ending = Ending::crashed;
  }
  outcome.over = files->effects() < trial.at;
  if (trial.power_cut) files->cut_power();
  try {
    outcome.problem = problem_after(dir, outcome.ending, before.content, after.content);
  } catch (const Error& error) {
    outcome.problem = error.what();
  }
  return outcome;
}

/// Tries every effect; counts the trials that went wrong.
struct Tally {
  int effects = 0;
  int problems = 0;
  int refused = 0;
  int saved = 0;
};

Tally try_all(Trial trial, bool report) {
  Tally tally;
  for (Outcome outcome; !outcome.over; ++trial.at) {
    outcome = run(trial);
    tally.effects = trial.at;
    tally.problems += outcome.problem.empty() ? 0 : 1;
    tally.refused += outcome.ending == Ending::refused ? 1 : 0;
    tally.saved += outcome.ending == Ending::saved ? 1 : 0;
    if (report) {
      EXPECT_EQ(outcome.problem, "") << "effect " << trial.at << ", step " << trial.step;
    }
  }
  return tally;
}

class CheckpointFaults : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(CheckpointFaults, CrashBetweenAnyTwoEffects) {
  EXPECT_GT(try_all({.fault = Fault::crash, .step = GetParam()}, true).effects, 20);
}

// promise: trainer.h#save
TEST_P(CheckpointFaults, PowerCutBetweenAnyTwoEffects) {
  try_all({.fault = Fault::crash, .step = GetParam(), .power_cut = true}, true);
}

// Nothing that is removed afterwards brings the new one to disk in passing.
TEST_P(CheckpointFaults, PowerCutWhereAllAreKept) {
  try_all({.fault = Fault::crash, .step = GetParam(), .power_cut = true, .keep = {}}, true);
}

TEST_P(CheckpointFaults, AnySingleEffectRefused) {
  const LogCapture log;
  const Tally tally = try_all({.fault = Fault::refuse_once, .step = GetParam()}, true);
  EXPECT_GT(tally.refused, 15);
  // What fails after the new one is in place is only a warning.
  EXPECT_GT(tally.saved, 1);
  EXPECT_EQ(log.count("warning: an older checkpoint is still there: cannot write"),
            tally.saved - 1);
}

// promise: trainer.h#save
TEST_P(CheckpointFaults, DiskFullFromAnyEffectOn) {
  const LogCapture log;
  EXPECT_GT(try_all({.fault = Fault::disk_full, .step = GetParam()}, true).refused, 15);
}

// A later step, and one that takes the place of an older.
INSTANTIATE_TEST_SUITE_P(Step, CheckpointFaults, ::testing::Values(300, 200));

TEST(CheckpointFaults, PowerCutInTheFirstSaveOfAll) {
  bool saved = false;
  for (int at = 1; !saved; ++at) {
    const TemporaryFolder folder;
    const std::string dir = folder.file("runs/new/a");
    const SampleCheckpoint sample(1, 1);
    const auto files = std::make_shared<FaultyFiles>(Fault::crash, at);
    try {
      CheckpointStore(files, dir).save(sample.content);
      saved = true;
    } catch (const Crash&) {
    }
    files->cut_power();
    const NewestGood found = CheckpointStore(host_files(), dir).newest_good();
    EXPECT_EQ(found.passed_over.size(), 0U) << "effect " << at;
    EXPECT_TRUE(!found.checkpoint || holds(*found.checkpoint, sample.content));
    EXPECT_TRUE(found.checkpoint || !saved);
  }
}

TEST(CheckpointFaultsControl, WithoutSyncAPowerCutIsFatal) {
  const Trial trial{.fault = Fault::crash_without_sync, .power_cut = true};
  EXPECT_GT(try_all(trial, false).problems, 0);
}

TEST(CheckpointFaultsControl, RemovingBeforeReplacingIsFatal) {
  EXPECT_GT(try_all({.fault = Fault::crash_when_hasty}, false).problems, 0);
}

// promise: error.h#code, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(CheckpointFaults, FullDiskNamesPathReasonAndSize) {
  const TemporaryFolder folder;
  const SampleCheckpoint sample(200, 1);
  CheckpointStore store(std::make_shared<FaultyFiles>(Fault::disk_full, 6), folder.file("d"));
  try {
    store.save(sample.content);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), ENOSPC);
    EXPECT_THAT(error.what(),
                ::testing::MatchesRegex("the checkpoint of step 200 \\([0-9]+ bytes\\) cannot be "
                                        "saved: cannot write .*/d/.step-00000200.part-[0-9]+/"
                                        "model.safetensors: No space left on device. Those in "
                                        ".*/d are as they were"));
  }
}

}  // namespace
}  // namespace tutti::test
