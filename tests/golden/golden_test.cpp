// The bits and names of the golden runs are those that were frozen in tests/golden/: digests of
// states, the names in checkpoints and step logs. `golden_tests --write` freezes them anew, for
// whoever changes one on purpose (CONTRIBUTING.md, "Golden runs"). And checkpoints that earlier
// builds have written are loaded, or refused with the version that they are of.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "golden/trainer_runs.h"
#include "support/running_command.h"
#include "support/spread.h"

namespace tutti::test::golden {

const std::vector<GoldenRun>& golden_runs() {
  static const auto all = [] {
    auto runs = trainer_runs();
    for (auto& run : parallel_runs()) runs.push_back(std::move(run));
    return runs;
  }();
  return all;
}

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

bool writes = false;

fs::path file_of(const std::string& run) { return golden_folder() / "runs" / (run + ".txt"); }

std::string prefix_of(const GoldenRun& run, int workers) {
  return run.is_per_workers ? fmt::format("on {}, ", workers) : "";
}

/// Writes what each number of workers gives; where it must be the same, it has to be.
void freeze(const GoldenRun& run) {
  Lines lines;
  for (const int workers : {1, 2, 3}) {
    auto now = with_prefix(prefix_of(run, workers), run.train(workers));
    if (lines.empty() || run.is_per_workers) {
      lines.insert(lines.end(), now.begin(), now.end());
    } else {
      EXPECT_EQ(differences(lines, now), "") << workers << " workers, where golden is 1 worker";
      if (::testing::Test::HasFailure()) return;
    }
  }
  if (::testing::Test::HasFailure()) return;
  write_lines(file_of(run.name),
              "Written by golden_tests --write: see CONTRIBUTING.md, \"Golden runs\".", lines);
}

void expect_none(const std::string& differences, const std::string& what, const fs::path& golden) {
  if (differences.empty()) return;
  ADD_FAILURE() << what << " differs from " << golden.string() << ":\n"
                << differences
                << "Is it on purpose? build/bin/golden_tests --write freezes it anew, and the diff "
                   "shows it (CONTRIBUTING.md, \"Golden runs\").";
}

class Golden : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Golden, RunGivesTheFrozenBitsAndNames) {
  const auto& run = golden_runs()[GetParam()];
  if (writes) return freeze(run);
  const auto lines = read_lines(file_of(run.name));
  for (const int workers : {1, 2, 3}) {
    const auto golden = run.is_per_workers ? without_prefix(prefix_of(run, workers), lines) : lines;
    expect_none(differences(golden, run.train(workers)),
                fmt::format("run \"{}\" on {} worker(s)", run.name, workers), file_of(run.name));
    if (HasFailure()) return;  // once is enough to be read
  }
}

// promise: clusters#several-hosts, trainer.h#state_sha256
TEST_P(Golden, RunGivesTheSameOnSeveralHosts) {
  const auto& run = golden_runs()[GetParam()];
  if (writes) return;
  const auto lines = read_lines(file_of(run.name));
  for (const auto& [workers, hosts] : {std::pair{3, 2}, {3, 3}}) {
    const Spread spread(hosts);
    const auto golden = run.is_per_workers ? without_prefix(prefix_of(run, workers), lines) : lines;
    expect_none(differences(golden, run.train(workers)),
                fmt::format("run \"{}\", {} workers on {} hosts", run.name, workers, hosts),
                file_of(run.name));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Run, Golden, ::testing::Range(std::size_t{0}, golden_runs().size()),
                         [](const auto& test) { return golden_runs()[test.param].name; });

TEST(GoldenFiles, EachIsOfARun) {
  for (const auto& entry : fs::directory_iterator(golden_folder() / "runs")) {
    const auto name = entry.path().stem().string();
    EXPECT_TRUE(std::any_of(golden_runs().begin(), golden_runs().end(),
                            [&](const auto& run) { return run.name == name; }))
        << entry.path() << " is of no run: remove it";
  }
}

// ---- checkpoints of earlier builds ----

fs::path kept_folder() { return golden_folder() / "checkpoints"; }

/// It holds run/step-00000003/, the checkpoint, and resumed.txt.
fs::path kept_folder(int version, const std::string& run) {
  return kept_folder() / fmt::format("version-{}", version) / run;
}

fs::path checkpoint_in(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("step-")) return entry.path();
  }
  throw std::runtime_error(folder.string() + " holds no checkpoint");
}

/// The version of the checkpoints that this build writes.
int version_of_this_build(const KeptRun& run) {
  const TemporaryFolder folder;
  run.save(1, folder.file("run"));
  return version_of_checkpoint(checkpoint_in(folder.file("run")));
}

class GoldenCheckpoint : public ::testing::TestWithParam<std::size_t> {
 protected:
  const KeptRun& run() const { return kept_runs()[GetParam()]; }
};

TEST_P(GoldenCheckpoint, OfThisBuildsVersionIsThere) {
  const auto folder = kept_folder(version_of_this_build(run()), run().name) / "run";
  if (writes && !fs::exists(folder)) {
    run().save(2, folder.string());
    fs::remove(folder / ".lock");
    fs::remove(folder / ".run");
  }
  EXPECT_TRUE(fs::exists(folder)) << folder << " is missing: golden_tests --write makes it, once";
}

TEST_P(GoldenCheckpoint, IsLoadedOrRefusedWithItsVersion) {
  const auto ours = version_of_this_build(run());
  for (const auto& entry : fs::directory_iterator(kept_folder())) {
    const auto home = entry.path() / run().name;
    if (!fs::exists(home)) continue;
    const auto theirs = version_of_checkpoint(checkpoint_in(home / "run"));
    for (const int workers : {1, 3}) {
      auto now = run().resume(workers, (home / "run").string());
      ASSERT_FALSE(now.empty());
      const auto where = fmt::format("{} on {} worker(s)", home.string(), workers);
      if (now.front().first == "refused") {
        const bool has_version =
            now.front().second.find(fmt::format("has version {}; this build reads version",
                                                theirs)) != std::string::npos;
        EXPECT_TRUE(theirs != ours && has_version)
            << where << " is refused, but not with its version: " << now.front().second;
        continue;
      }
      if (writes && workers == 1) {
        write_lines(home / "resumed.txt", "What a load of run/ gives, and the steps after it.",
                    now);
      }
      expect_none(differences(read_lines(home / "resumed.txt"), now), where, home / "resumed.txt");
      if (theirs != ours) continue;
      // Nothing is lost in a load: what is saved after it has the same names and bytes.
      const auto there = lines_of_checkpoint(checkpoint_in(home / "run"));
      ASSERT_GE(now.size(), there.size());
      const Lines again(now.end() - static_cast<std::ptrdiff_t>(there.size()), now.end());
      expect_none(differences(there, again), where + ", saved again", home / "run");
    }
  }
}

/// Saved on some hosts and resumed on others: what is saved, and what follows, are those of one.
// promise: clusters#several-hosts
TEST_P(GoldenCheckpoint, MovesBetweenHosts) {
  const auto kept = kept_folder(version_of_this_build(run()), run().name);
  if (writes || !fs::exists(kept)) return;
  const auto resumed = read_lines(kept / "resumed.txt");
  for (const auto& [workers, hosts] : {std::pair{4, 1}, {4, 2}, {3, 3}}) {
    const TemporaryFolder folder;
    {
      const Spread spread(hosts);
      run().save(workers, folder.file("run"));
    }
    const auto where =
        fmt::format("{}, saved by {} workers on {} hosts", run().name, workers, hosts);
    expect_none(differences(lines_of_checkpoint(checkpoint_in(kept / "run")),
                            lines_of_checkpoint(checkpoint_in(folder.file("run")))),
                where, kept / "run");
    for (const auto& [others, other_hosts] : {std::pair{4, 1}, {4, 2}, {3, 3}}) {
      const Spread spread(other_hosts);
      expect_none(differences(resumed, run().resume(others, folder.file("run"))),
                  fmt::format("{}, resumed by {} on {}", where, others, other_hosts),
                  kept / "resumed.txt");
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Run, GoldenCheckpoint,
                         ::testing::Range(std::size_t{0}, kept_runs().size()),
                         [](const auto& test) { return kept_runs()[test.param].name; });

// ---- the comparison itself ----

TEST(GoldenText, ADifferenceNamesWhatAndBothValues) {
  const Lines golden = {{"step 1 state", "aa"}, {"tensor \"a\"", "F32"}, {"gone", "1"}};
  EXPECT_EQ(differences(golden, golden), "");
  EXPECT_EQ(differences(golden, {{"step 1 state", "ab"}, {"tensor \"b\"", "F32"}, {"gone", "1"}}),
            "step 1 state\n  golden: aa\n  now:    ab\n"
            "gone: tensor \"a\": F32\nnew:  tensor \"b\": F32\n");
  EXPECT_EQ(differences(golden, {golden[0], golden[2], golden[1]}),
            "the order of the lines\n  golden: tensor \"a\"\n  now:    gone\n");
  EXPECT_THAT(differences({}, golden), HasSubstr("new:  step 1 state: aa\n"));
}

TEST(GoldenText, LinesAreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  const Lines lines = {
      {"log line 1", R"({"kind": "metrics"})"}, {"buffer:mean", "a: b"}, {"c", ""}};
  write_lines(folder.file("lines.txt"), "A comment: it is passed over.", lines);
  EXPECT_EQ(read_lines(folder.file("lines.txt")), lines);
  EXPECT_TRUE(read_lines(folder.file("none.txt")).empty());
}

}  // namespace
}  // namespace tutti::test::golden

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--write") {
      std::fprintf(stderr, "%s: not known; there is --write, which freezes golden runs anew\n",
                   argv[i]);
      return 2;
    }
    tutti::test::golden::writes = true;
  }
  return RUN_ALL_TESTS();
}
