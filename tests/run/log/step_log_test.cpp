#include "run/log/step_log.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "run/files/faulty_files.h"
#include "run/log/step_log_reader.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const RunFingerprint kFacts = {{"seed", "1"}, {"schlüssel \"q\"\n", "∞ \\"}};

/// Another one for each step and salt.
NamedDigests digests_of(std::int64_t step, int salt = 0) {
  const std::string text = std::to_string(step * 100 + salt);
  const std::string digest = std::string(64 - text.size(), 'a') + text;
  return {{"z.weight", digest}, {"z.weight/exp_avg", digest}, {"a \"b\"\n", digest}};
}

class Log : public ::testing::Test {
 protected:
  StepLog log(std::int64_t steps = 0, const RunFingerprint& facts = kFacts) const {
    return {host_files(), path_, facts, steps};
  }
  StepLogFile read() const { return {host_files(), path_}; }
  /// Step and digest of all.
  std::vector<std::pair<std::int64_t, NamedDigests>> all() const {
    const StepLogFile file = read();
    std::vector<std::pair<std::int64_t, NamedDigests>> found;
    for (const LoggedStep& step : file.steps()) found.emplace_back(step.step, file.digests(step));
    return found;
  }
  json line(std::size_t number) const { return json::parse(lines_of(read_file(path_)).at(number)); }
  void append_text(const std::string& text) const {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("runs/first/log.jsonl");
};

TEST_F(Log, GivesBackDigestsInTheirOrder) {
  StepLog written = log();
  EXPECT_THAT(read().steps(), IsEmpty());
  for (const std::int64_t step : {3, 7, 200}) {
    written.metrics(step, {});
    written.digests(step, digests_of(step));
  }
  EXPECT_THAT(all(), ElementsAre(Pair(3, digests_of(3)), Pair(7, digests_of(7)),
                                 Pair(200, digests_of(200))));
  EXPECT_EQ(read().facts(), kFacts);
  EXPECT_FALSE(read().unfinished_line());
}

TEST_F(Log, IsOneJsonObjectPerLine) {
  StepLog written = log();
  written.digests(2, digests_of(2));
  EXPECT_EQ(lines_of(read_file(path_)).size(), 2U);
  EXPECT_EQ(line(0), json({{"format", "tutti step log"},
                           {"version", 1},
                           {"steps", 0},
                           {"facts", {{"seed", "1"}, {"schlüssel \"q\"\n", "∞ \\"}}}}));
  EXPECT_EQ(line(1)["kind"], "digests");
  EXPECT_EQ(line(1)["step"], 2);
  EXPECT_EQ(line(1)["digests"]["z.weight"], digests_of(2)[0].second);
}

TEST_F(Log, MetricsKeepEveryBitAndWhatIsNotFiniteIsNull) {
  StepLog written = log();
  const Metric sum{.name = "n", .kind = MetricKind::sum, .value = kNan, .values = {}};
  const Metric gathered{.name = "g", .kind = MetricKind::gather, .values = {1, kNan}};
  written.metrics(1, {.loss = 0.1,
                      .weight = 5e-324,
                      .gradient_norm = kInfinity,
                      .rate_factor = 1.0 / 3,
                      .metrics = Metrics({sum, gathered})});
  EXPECT_EQ(line(1), json({{"kind", "metrics"},
                           {"step", 1},
                           {"applied", true},
                           {"loss", 0.1},
                           {"gradient_norm", nullptr},
                           {"weight", 5e-324},
                           {"rate_factor", 1.0 / 3},
                           {"loss_scale", 1.0},
                           {"metrics", {{"g", {1.0, nullptr}}, {"n", nullptr}}}}));
  written.metrics(2, {.applied = false, .dropped_because = "\"x\" is NaN", .loss = kNan});
  EXPECT_EQ(line(2)["dropped_because"], "\"x\" is NaN");
  EXPECT_EQ(line(2)["loss"], nullptr);
  EXPECT_FALSE(line(2).contains("gradient_norm")) << "not known is not infinite";
  EXPECT_THAT(read().steps(), IsEmpty());
}

TEST_F(Log, ARunFromTheStartReplacesTheFile) {
  log().digests(5, digests_of(5));
  log(0, {{"seed", "2"}}).digests(3, digests_of(3));
  EXPECT_THAT(all(), ElementsAre(Pair(3, digests_of(3))));
  EXPECT_EQ(lines_of(read_file(path_)).size(), 2U);
}

// promise: trainer_options.h#log
TEST_F(Log, AResumedRunTakesBackLaterSteps) {
  {
    StepLog written = log();
    for (const std::int64_t step : {100, 200, 250, 300}) written.digests(step, digests_of(step));
  }
  log(200, {{"seed", "3"}}).digests(250, digests_of(250, 1));
  EXPECT_THAT(all(), ElementsAre(Pair(100, digests_of(100)), Pair(200, digests_of(200)),
                                 Pair(250, digests_of(250, 1))));
  EXPECT_EQ(read().facts(), (RunFingerprint{{"seed", "3"}}));
  EXPECT_EQ(lines_of(read_file(path_)).size(), 7U) << "nothing is removed";
  log(120);
  EXPECT_THAT(all(), ElementsAre(Pair(100, digests_of(100)))) << "by the header alone";
}

TEST_F(Log, TheLastLineOfAStepCounts) {
  StepLog written = log();
  for (const std::int64_t step : {10, 20, 30}) written.digests(step, digests_of(step));
  written.digests(20, digests_of(20, 1));
  EXPECT_THAT(all(), ElementsAre(Pair(10, digests_of(10)), Pair(20, digests_of(20, 1))));
}

TEST_F(Log, AResumedRunWithoutAFileBeginsOne) {
  log(200).digests(300, digests_of(300));
  EXPECT_THAT(all(), ElementsAre(Pair(300, digests_of(300))));
}

TEST_F(Log, WhatAKilledRunLeftIsPassedOverAndThenCut) {
  log().digests(100, digests_of(100));
  append_text(R"({"kind":"digests","step":200,"dig)");
  EXPECT_EQ(read().unfinished_line(), 3U);
  EXPECT_THAT(all(), ElementsAre(Pair(100, digests_of(100))));
  log(100).digests(200, digests_of(200));
  EXPECT_FALSE(read().unfinished_line());
  EXPECT_THAT(all(), ElementsAre(Pair(100, digests_of(100)), Pair(200, digests_of(200))));
}

// promise: trainer_options.h#log
TEST_F(Log, AFileThatIsNoStepLogIsLeftAlone) {
  log();
  for (const std::string& text :
       {std::string("int main() {}\n"),
        std::string("{\"format\":\"tutti step log\",\"version\":2,"), std::string("x")}) {
    std::ofstream(path_, std::ios::binary) << text;
    for (const std::int64_t steps : {0, 100})
      EXPECT_EQ(text_of([&] { log(steps); }),
                path_ + " is there, and is no step log of version 1: give another name");
    EXPECT_EQ(read_file(path_), text);
  }
  std::ofstream(path_, std::ios::binary) << "{\"form";  // killed within its first line
  log(100);
  EXPECT_EQ(lines_of(read_file(path_)).size(), 1U);
  EXPECT_EQ(text_of([&] { StepLog(host_files(), "", {}, 0); }),
            "a step log needs a file; its name is empty");
  EXPECT_EQ(text_of<IoError>([&] { StepLog(host_files(), folder_.file("runs"), {}, 0); }),
            "cannot open " + folder_.file("runs") + ": Is a directory");
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(text_of<IoError>([&] { StepLog(host_files(), pipe, {}, 0); }),
            "cannot open " + pipe + ": not a regular file");
}

TEST_F(Log, TextThatIsNotUtf8IsRefusedAndNothingIsWritten) {
  StepLog written = log();
  const std::string before = read_file(path_);
  const std::string expected =
      "step 7 cannot be logged in " + path_ + ": a name or text is not UTF-8";
  EXPECT_EQ(text_of([&] { written.digests(7, {{"\xff", "a"}}); }), expected);
  EXPECT_EQ(text_of([&] { written.metrics(7, {.applied = false, .dropped_because = "\xff"}); }),
            expected);
  EXPECT_THAT(text_of([&] { log(0, {{"a", "\xff"}}); }), HasSubstr("is not UTF-8"));
  EXPECT_EQ(read_file(path_), before);
}

TEST_F(Log, AFullDiskIsAnErrorAndLeavesWholeLines) {
  log().digests(1, digests_of(1));
  const std::string before = read_file(path_);
  for (int at = 1; at < 8; ++at) {
    const auto full = std::make_shared<FaultyFiles>(Fault::disk_full, at);
    const std::string text = text_of<IoError>([&] {
      StepLog written(full, path_, kFacts, 1);
      written.digests(2, digests_of(2));  // more than one piece of what is written at once
    });
    if (full->effects() < at) continue;
    EXPECT_EQ(text, "cannot write " + path_ + ": No space left on device") << at;
    EXPECT_FALSE(read().unfinished_line());
    EXPECT_THAT(all(), ElementsAre(Pair(1, digests_of(1)))) << at;
  }
  log(1).digests(2, digests_of(2));
  EXPECT_THAT(all(), ElementsAre(Pair(1, digests_of(1)), Pair(2, digests_of(2))));
}

// promise: error.h#IoError
TEST_F(Log, ALineThatFailedOnceMayBeFollowedByOthers) {
  log();
  // Effects of the one made here: open, header; then the first piece of a line, and its second.
  const auto once = std::make_shared<FaultyFiles>(Fault::refuse_once, 4);
  StepLog written(once, path_, {}, 1);
  EXPECT_EQ(text_of<IoError>([&] { written.digests(2, digests_of(2)); }),
            "cannot write " + path_ + ": Input/output error");
  written.digests(4, digests_of(4));
  EXPECT_THAT(all(), ElementsAre(Pair(4, digests_of(4))));
}

TEST_F(Log, AKillAtAnyWriteLeavesALogThatIsReadAndContinued) {
  int last = 0;
  for (int at = 1; at <= last + 1; ++at) {
    std::filesystem::remove(path_);
    log().digests(1, digests_of(1));
    const auto killed = std::make_shared<FaultyFiles>(Fault::crash, at);
    try {
      StepLog written(killed, path_, kFacts, 1);
      written.digests(2, digests_of(2));
      written.digests(3, digests_of(3));
    } catch (const Crash&) {
      last = at;
    }
    EXPECT_GE(all().size(), 1U) << at;
    EXPECT_EQ(all().front().second, digests_of(1)) << at;
    log(1).digests(2, digests_of(2, 1));
    EXPECT_THAT(all(), ElementsAre(Pair(1, digests_of(1)), Pair(2, digests_of(2, 1)))) << at;
  }
  EXPECT_GT(last, 5) << "lines are written in pieces here";
}

}  // namespace
}  // namespace tutti::test
