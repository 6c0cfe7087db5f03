// The examples as their readers run them: under the launcher, on real text.

#include <gmock/gmock.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string example(const std::string& name) { return std::string(TUTTI_EXAMPLES) + "/" + name; }

/// Whatever the expression's first group matched, each time.
std::vector<std::string> all_matches(const std::string& text, const std::string& expression) {
  std::vector<std::string> found;
  const std::regex pattern(expression);
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

/// All settings are in the log.
const CommandSetup kDebugLog{.environment = {"TUTTI_LOG=debug"}};

const std::string kDigest = "(parameters sha256 [0-9a-f]{64})";

/// Arguments of `tutti run` with options of its own, for char_lm on a small model and real text.
std::vector<std::string> char_lm(const std::vector<std::string>& run_options,
                                 const std::vector<std::string>& options) {
  std::vector<std::string> all{"run"};
  const auto add = [&](const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  add(run_options);
  add({example("char_lm"), "--text", std::string(TUTTI_SOURCE) + "/LICENSE"});
  add({"--rows", "3", "--length", "12", "--hidden", "20"});
  add(options);
  return all;
}

/// "step S loss L parameters sha256 …", or "".
std::string end_of(const Finished& run) {
  const auto lines = all_matches(run.out, "(step [0-9]+ loss [0-9.]+ " + kDigest + ")");
  return lines.size() == 1 ? lines[0] : "";
}

TEST(Examples, CharLmEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  std::set<std::string> ends;
  for (const int workers : {1, 2, 3, 4}) {
    const auto run = run_command(
        char_lm({"-n", std::to_string(workers)},
                {"--steps", "6", "--micro-batches", "4", "--sample", "9", "--seed", "5"}));
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("sample: "));
    EXPECT_THAT(run.out, HasSubstr("together 24 = 6 steps x 4 micro-batches: all, each once"));
    const auto counts = all_matches(run.out, "computed ([0-9]+) micro-batches");
    EXPECT_EQ(counts.size(), static_cast<std::size_t>(workers));
    ASSERT_THAT(end_of(run), StartsWith("step 6 ")) << run.out;
    ends.insert(end_of(run));
  }
  EXPECT_EQ(ends.size(), 1u);
}

TEST(Examples, WordVectorsEndWithTheSameBytesOnAnyNumberOfWorkers) {
  for (const char* const optimizer : {"adagrad", "adam", "sgd"}) {
    std::set<std::string> ends;
    for (const char* const workers : {"1", "2", "3"}) {
      const auto run = run_command({"run", "-n", workers, example("word_vectors"), "--text",
                                    std::string(TUTTI_SOURCE) + "/LICENSE", "--steps", "6",
                                    "--optimizer", optimizer, "--batch", "20", "--report"});
      ASSERT_EQ(run.status, 0) << run.err;
      EXPECT_THAT(run.out, HasSubstr("centers.weight"));
      ASSERT_THAT(end_of(run), StartsWith("step 6 ")) << run.out;
      ends.insert(end_of(run));
    }
    EXPECT_EQ(ends.size(), 1u) << optimizer;
  }
}

// promise: numerics#seeing-it
TEST(Examples, CharLmOfShardsEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  std::set<std::string> ends;
  for (const char* const workers : {"1", "2", "3", "5", "8"}) {
    const auto run =
        run_command(char_lm({"-n", workers}, {"--steps", "4", "--shards", "8", "--sample", "9"}));
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("together 32 = 4 steps x 8 shards: all, each once"));
    ASSERT_THAT(end_of(run), StartsWith("step 4 ")) << run.out;
    ends.insert(end_of(run));
  }
  EXPECT_EQ(ends.size(), 1u);
}

TEST(Examples, CharLmWithACodecEndsWithTheSameBytesOnAnyNumberOfWorkersAndReports) {
  std::set<std::string> ends;
  for (const char* const workers : {"1", "3", "5"}) {
    const auto run = run_command(
        char_lm({"-n", workers}, {"--steps", "4", "--shards", "5", "--codec", "topk:0.1",
                                  "--logical-workers", "5", "--fusion", "500", "--report"}),
        kDebugLog);
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("4 steps, 4 collectives"));
    EXPECT_THAT(run.out, HasSubstr("per step"));
    EXPECT_THAT(run.err, HasSubstr("for messages and residuals of each logical worker"));
    ASSERT_THAT(end_of(run), StartsWith("step 4 ")) << run.out;
    ends.insert(end_of(run));
  }
  EXPECT_EQ(ends.size(), 1u);

  const auto parallel = run_command(char_lm(
      {"-n", "2"}, {"--steps", "3", "--codec", "half", "--error-feedback", "off", "--report"}));
  EXPECT_EQ(parallel.status, 0) << parallel.err;
  EXPECT_THAT(parallel.out, HasSubstr("3 steps, 3 collectives"));

  const auto corrected =
      run_command(char_lm({"-n", "2"}, {"--steps", "3", "--shards", "4", "--codec", "topk:0.01:2",
                                        "--optimizer", "sgd", "--momentum-correction", "0.9"}),
                  kDebugLog);
  EXPECT_EQ(corrected.status, 0) << corrected.err;
  EXPECT_THAT(corrected.err, HasSubstr("codec topk:0.01:2, error feedback on, per group, fusion "
                                       "2097152, clamp 0, momentum correction 0.9"));
}

TEST(Examples, CharLmWithAnAveragingPolicyEndsWithTheSameBytesOnAnyNumberOfWorkersAndReports) {
  std::set<std::string> ends;
  for (const char* const workers : {"1", "3", "5"}) {
    const auto run =
        run_command(char_lm({"-n", workers}, {"--steps", "5", "--shards", "5", "--logical-workers",
                                              "5", "--averaging", "bmuf:2", "--state-at-averaging",
                                              "average", "--fusion", "500", "--report"}),
                    kDebugLog);
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("5 steps, 2 collectives"));
    EXPECT_THAT(run.err, HasSubstr("for each of 5 logical workers"));
    ASSERT_THAT(end_of(run), StartsWith("step 5 ")) << run.out;
    ends.insert(end_of(run));
  }
  EXPECT_EQ(ends.size(), 1u);
}

TEST(Examples, CharLmGoesOnByItselfAndMeetsInDataParallelToo) {
  const auto run =
      run_command(char_lm({"-n", "2"}, {"--steps", "6", "--averaging", "local-sgd:3", "--report"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("6 steps, 2 collectives"));
  EXPECT_THAT(run.err, HasSubstr("averaging local-sgd:3"));
}

TEST(Examples, CharLmTrainsByDilocoInFragmentsEitherWay) {
  std::set<std::string> ends;
  for (const std::string how : {"", ",int8", ",overlap=1"}) {
    for (const char* const workers : {"1", "3"}) {
      const auto run = run_command(
          char_lm({"-n", workers},
                  {"--steps", "8", "--shards", "4", "--logical-workers", "4", "--averaging",
                   "diloco:4,0.5,0.5,fragments=2,warm-up=0" + how, "--report"}));
      ASSERT_EQ(run.status, 0) << run.err;
      EXPECT_THAT(run.out, HasSubstr("8 steps, 4 collectives"));
      ASSERT_THAT(end_of(run), StartsWith("step 8 ")) << run.out;
      ends.insert(end_of(run));
    }
  }
  EXPECT_EQ(ends.size(), 3u) << "one for each way to send";
  const auto parallel =
      run_command(char_lm({"-n", "2"}, {"--steps", "4", "--averaging",
                                        "diloco:4,warm-up=0,int8,overlap=2", "--report"}));
  ASSERT_EQ(parallel.status, 0) << parallel.err;
  EXPECT_THAT(parallel.out, HasSubstr("4 steps, 1 collectives"));
}

/// What char_lm says to options that it refuses.
std::string refusal(const std::vector<std::string>& options) {
  const auto run = run_command(char_lm({"-n", "2"}, options));
  EXPECT_NE(run.status, 0);
  return run.err;
}

TEST(Examples, CharLmRefusesPoliciesThatThereAreNot) {
  EXPECT_THAT(refusal({"--shards", "4", "--averaging", "local-sgd"}),
              HasSubstr("there are every-step, partial, local-sgd:K, bmuf:K and diloco:K[,rate"));
  EXPECT_THAT(refusal({"--shards", "4", "--averaging", "diloco:4,int4"}),
              HasSubstr("[,int8][,overlap=T]"));
  EXPECT_THAT(refusal({"--shards", "4", "--averaging", "local-sgd:4"}),
              HasSubstr("averaging local-sgd:4 without logical_workers"));
  EXPECT_THAT(refusal({"--codec", "half", "--averaging", "local-sgd:2"}), HasSubstr("--shards"));
  EXPECT_THAT(refusal({"--shards", "4", "--fusion", "4"}), HasSubstr("--codec or --averaging"));
}

TEST(Examples, CharLmRefusesCodecsThatThereAreNot) {
  EXPECT_THAT(refusal({"--shards", "4", "--codec", "top"}),
              HasSubstr("there are none, half, bfloat16, int8, threshold[:0.05], topk[:0.05["));
  EXPECT_THAT(refusal({"--shards", "4", "--codec", "topk:1.5"}), HasSubstr("must be in (0, 1]"));
  EXPECT_THAT(refusal({"--codec", "topk", "--momentum-correction", "0.9"}),
              HasSubstr("--momentum-correction requires --optimizer sgd"));
  EXPECT_THAT(refusal({"--shards", "4", "--optimizer", "sgd:fast"}),
              HasSubstr("there are adam, adamw[:decay] and sgd[:momentum]"));
  EXPECT_THAT(refusal({"--shards", "4", "--codec", "half", "--logical-workers", "5"}),
              HasSubstr("5 logical workers of 4 shards"));
}

// promise: numerics#seeing-it
TEST(Examples, CharLmStopsOnThreeWorkersAndGoesOnWithTwo) {
  const TemporaryFolder folder;
  const auto saved = folder.file("run");
  const auto straight = run_command(char_lm({"-n", "1"}, {"--steps", "6", "--shards", "5"}));
  const auto first =
      run_command(char_lm({"-n", "3"}, {"--steps", "3", "--shards", "5", "--save", saved}));
  ASSERT_EQ(first.status, 0) << first.err;
  const auto second =
      run_command(char_lm({"-n", "2"}, {"--steps", "6", "--shards", "5", "--load", saved}));
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("resumed from step 3\n"));
  EXPECT_THAT(end_of(straight), StartsWith("step 6 "));
  EXPECT_EQ(end_of(second), end_of(straight));

  const auto over = run_command(
      char_lm({"-n", "2"}, {"--steps", "2", "--shards", "5", "--load", saved, "--sample", "0"}));
  EXPECT_EQ(over.status, 0) << over.err;
  EXPECT_THAT(over.out, HasSubstr("resumed from step 3: no step is left\n"));
  EXPECT_THAT(all_matches(over.out, "(step 3 " + kDigest + ")").size(), 1u);

  const auto foreign = run_command(
      char_lm({"-n", "2"}, {"--steps", "6", "--shards", "4", "--seed", "9", "--load", saved}));
  EXPECT_EQ(foreign.status, 1);
  EXPECT_THAT(foreign.err, HasSubstr("is a checkpoint of another run:"));
  EXPECT_THAT(foreign.err, HasSubstr("seed is 1 in the checkpoint, 9 here"));
  EXPECT_THAT(foreign.err, HasSubstr("shards is 5 in the checkpoint, 4 here"));
}

/// A worker of the run whose command line holds the text; -1 if there is none.
pid_t worker_with(const std::string& text) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    const bool is_worker = line.rfind(example("char_lm"), 0) == 0;
    if (is_worker && line.find(text) != std::string::npos) return std::stoi(name);
  }
  return -1;
}

// promise: errors#when-a-worker-dies
TEST(Examples, CharLmWhoseWorkerIsKilledEndsWithTheSameBytesAfterARestart) {
  const TemporaryFolder folder;
  const auto saved = folder.file("run");
  const std::vector<std::string> options{"--steps", "300", "--shards", "4"};
  const auto straight = run_command(char_lm({"-n", "1"}, options));
  // What another run has left in the folder is not what a restart goes on from.
  const auto other = run_command(
      char_lm({"-n", "1"}, {"--steps", "299", "--shards", "4", "--seed", "2", "--save", saved}));
  ASSERT_EQ(other.status, 0) << other.err;
  auto saving = options;
  saving.insert(saving.end(), {"--save", saved, "--save-every", "10"});
  RunningCommand command(char_lm({"-n", "2", "--restarts", "1"}, saving));
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  while (!std::filesystem::exists(saved + "/step-00000010/manifest.json")) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  const auto victim = worker_with(saved);
  ASSERT_GT(victim, 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_EQ(command.finish(), 0) << command.err;
  EXPECT_THAT(command.err, HasSubstr("tutti run: restart 1 of 1"));
  EXPECT_THAT(command.out, HasSubstr("resumed from step "));
  EXPECT_THAT(end_of(straight), StartsWith("step 300 "));
  EXPECT_EQ(end_of({0, command.out, ""}), end_of(straight));
}

// promise: numerics#seeing-it
TEST(Examples, CharLmRunsAreComparedByTheirLogs) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& workers, const std::string& seed) {
    const auto file = folder.file("log-" + workers + "-" + seed);
    const auto run =
        run_command(char_lm({"-n", workers}, {"--steps", "3", "--shards", "4", "--seed", seed,
                                              "--log", file, "--hash-every", "1"}),
                    kDebugLog);
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr(", log " + file + " (metrics every 1)"));
    EXPECT_THAT(run.err, HasSubstr(", hash_every 1,"));
    return file;
  };
  const auto one = train("1", "1");
  const auto three = train("3", "1");
  const auto other = train("3", "2");
  const auto same = run_command({"compare", one, three});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  const auto differs = run_command({"compare", one, other});
  EXPECT_EQ(differs.status, 1) << differs.out << differs.err;
  EXPECT_THAT(differs.out, HasSubstr("step 1"));
  EXPECT_THAT(differs.out, HasSubstr("embedding.weight"));
}

TEST(Examples, CharLmSaysWhatIsWrongWithItsOptions) {
  const auto run = run_command(char_lm({"-n", "1"}, {"--steps", "0"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("char_lm: --steps: "));
  EXPECT_THAT(run.err, HasSubstr("--help lists the options"));
  EXPECT_EQ(run_command(char_lm({"-n", "1"}, {"--help"})).status, 0);
}

TEST(Examples, CharLmDependsOnItsSeed) {
  std::set<std::string> ends;
  for (const auto* seed : {"1", "2"}) {
    const auto run = run_command(char_lm({"-n", "1"}, {"--steps", "2", "--seed", seed}));
    ASSERT_EQ(run.status, 0) << run.err;
    for (const auto& end : all_matches(run.out, kDigest)) ends.insert(end);
  }
  EXPECT_EQ(ends.size(), 2u);
}

TEST(Examples, CharLmSaysWhatItCannotRead) {
  const auto run = run_command(
      {"run", "-n", "2", example("char_lm"), "--text", "/no/such/text", "--steps", "1"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("cannot read the text /no/such/text"));
}

// promise: data_parallel.h#DataParallel
TEST(Examples, FirstStepsEndsWithTheSameBytesOnAllWorkers) {
  const auto run = run_command({"run", "-n", "3", example("first_steps")});
  ASSERT_EQ(run.status, 0) << run.err;
  auto ends = all_matches(run.out, kDigest);
  EXPECT_EQ(ends.size(), 3u) << run.out;
  EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size(), 1u);
}

}  // namespace
}  // namespace tutti::test
