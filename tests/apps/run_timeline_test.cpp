// When `tutti run --profile` merges the workers' timelines, and what of the run depends on it.

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

// large MIB: a timeline of that size of this rank.
constexpr const char* kLarge =
    "large() { { printf '{\"traceEvents\":['; yes '{\"pid\":1,\"name\":\"an event of some "
    "length.\"},' | head -n $(($1 * 23832)); printf '{\"pid\":2}]}'; } > "
    "$TUTTI_PROFILE.rank$TUTTI_RANK; }; ";

// Each worker writes its part, with one event, if the file `wanted` is there.
std::string write_part(const std::string& wanted) {
  return "[ -e " + wanted +
         " ] || exit 0; printf '{\"traceEvents\":[{\"pid\":1}]}' > "
         "$TUTTI_PROFILE.rank$TUTTI_RANK";
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, WhatIsNoFileIsRefusedAndLeftAsItIs) {
  const TemporaryFolder folder;
  const std::string fifo = folder.file("fifo");
  const std::string link = folder.file("link");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", link);
  for (const std::string& file : {fifo, link, std::string("/dev/null")}) {
    for (const bool option : {false, true}) {
      std::vector<std::string> options = {"-n", "1"};
      if (option) options.insert(options.end(), {"--profile", file});
      const auto run =
          run_script(options, "echo started",
                     {.environment = {option ? "TUTTI_PROFILE" : "TUTTI_PROFILE=" + file}});
      EXPECT_EQ(run.status, 2);
      EXPECT_THAT(run.err, HasSubstr("is not a regular file"));
      EXPECT_EQ(run.out, "");
    }
  }
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, ALinkStaysAndItsTargetIsWritten) {
  const TemporaryFolder folder;
  create_file(folder.file("wanted"));
  const std::string link = folder.file("link");
  std::filesystem::create_symlink("run.json", link);  // first without a target, then with one
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(run_script({"-n", "1", "--profile", link}, write_part(folder.file("wanted"))).status,
              0);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(read_file(folder.file("run.json")), R"({"traceEvents":[{"pid":1}]})");
  }
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, ThatOfAnEarlierRunDoesNotPassForThisOnes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const std::string wanted = folder.file("wanted");
  create_file(wanted);
  EXPECT_EQ(run_script({"-n", "1", "--profile", file}, write_part(wanted)).status, 0);
  EXPECT_TRUE(std::filesystem::exists(file));
  std::filesystem::remove(wanted);
  EXPECT_EQ(run_script({"-n", "1", "--profile", file}, write_part(wanted)).status, 0);
  EXPECT_FALSE(std::filesystem::exists(file));
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, LargeTimelinesNeedLittleMemoryAndLeaveReportAndStatus) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more address space than this test leaves";
#endif
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit lower{.rlim_cur = rlim_t{160} << 20, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_AS, &lower);
  const auto run = run_script({"-n", "2", "--profile", file},
                              std::string(kLarge) + "large 90; exit $((3 * TUTTI_RANK))");
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(run.status, 3);
  EXPECT_EQ(lines_of(run.err).back(), "tutti run: rank 1 of 2 failed first: exit status 3");
  EXPECT_GT(std::filesystem::file_size(file), std::size_t{170} << 20);
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, TheVariableAsksForItAsTheOptionDoes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  for (const bool option : {false, true}) {
    std::vector<std::string> arguments = {"run", "-n", "2"};
    if (option) arguments.insert(arguments.end(), {"--profile", file});
    create_file(folder.file("go"));
    arguments.insert(arguments.end(), {TUTTI_WAITING_WORKER, folder.file("go")});
    const CommandSetup setup{.environment = {option ? "TUTTI_PROFILE" : "TUTTI_PROFILE=" + file}};
    EXPECT_EQ(run_command(arguments, setup).status, 0);
    const auto timeline = nlohmann::json::parse(read_file(file));
    std::set<std::pair<int, std::string>> seen;
    for (const auto& event : timeline["traceEvents"]) seen.emplace(event["pid"], event["name"]);
    EXPECT_TRUE(seen.contains({0, "barrier"}));
    EXPECT_TRUE(seen.contains({1, "barrier"}));
    std::filesystem::remove(file);
  }
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, TheReportComesBeforeTheMergeThatASignalInterrupts) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  // Nearly all of it is a hole: quickly made, and long to copy.
  RunningCommand command(
      {"run", "-n", "2", "--profile", file, "/bin/sh", "-c",
       "part=$TUTTI_PROFILE.rank$TUTTI_RANK; printf '{\"traceEvents\":[' > $part; "
       "truncate -s 8G $part; printf '{}]}' >> $part; exit 3"});
  EXPECT_TRUE(command.wait_for("failed first: exit status 3")) << command.err;
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(), 3);
  EXPECT_EQ(
      lines_of(command.err).back(),
      "tutti run: timeline " + file + ": interrupted; the workers' parts are left as they are");
  EXPECT_FALSE(std::filesystem::exists(file + ".merging"));
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, AMergeThatIsKilledDoesNotChangeTheStatus) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  RunningCommand command(
      {"run", "-n", "2", "--profile", file, "/bin/sh", "-c",
       "part=$TUTTI_PROFILE.rank$TUTTI_RANK; printf '{\"traceEvents\":[' > $part; "
       "truncate -s 8G $part; printf '{}]}' >> $part; exit 3"});
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  while (!std::filesystem::exists(file + ".merging") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(children_of(command.pid()).at(0), SIGKILL);
  EXPECT_EQ(command.finish(), 3);
  EXPECT_THAT(command.err, HasSubstr("failed first: exit status 3\n"));
}

// promise: launcher#where-the-time-goes
TEST(RunTimeline, AMergeThatFailsChangesNeitherReportNorStatus) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const auto run = run_script({"-n", "2", "--profile", file},
                              "printf '{\"traceEvents\":[]}' > $TUTTI_PROFILE.rank$TUTTI_RANK; "
                              "mkdir -p $TUTTI_PROFILE.merging/full; exit $((TUTTI_RANK * 4))");
  EXPECT_EQ(run.status, 4);
  EXPECT_THAT(run.err, HasSubstr("tutti run: rank 1 of 2 failed first: exit status 4\n"
                                 "tutti run: timeline " +
                                 file + ": Is a directory; the workers' parts are left"));
  EXPECT_TRUE(std::filesystem::exists(file + ".rank0"));
}

}  // namespace
}  // namespace tutti
