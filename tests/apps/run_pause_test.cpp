// Readers that pause, and runs that are stopped and resumed: neither is a failure of a worker.

#include <gmock/gmock.h>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

bool is_paused(pid_t pid) {
  return read_file("/proc/" + std::to_string(pid) + "/status").find("State:\tT") !=
         std::string::npos;
}

int count_of(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Much more than fits into pipes.
constexpr int kLines = 800000;
std::string write_lines(const std::string& done) {
  return "seq " + std::to_string(kLines) + "; : > " + done;
}

void expect_all_lines(const std::string& out) {
  const auto lines = lines_of(out);
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kLines));
  for (int line = 1; line <= kLines; ++line)
    ASSERT_EQ(lines[static_cast<std::size_t>(line - 1)], "[0] " + std::to_string(line));
}

// More than the 64 MiB that the launcher keeps.
constexpr int kManyLines = 70'000;
const std::string kWide(1000, 'x');
const std::string kWriteTooMuch = "yes " + kWide + " | head -n " + std::to_string(kManyLines);

/// The launcher has taken all that it keeps, and takes no more: for a second, as others use the
/// processors too.
bool becomes_full(const RunningCommand& command) {
  constexpr int kSamples = 10;
  long long before = 0;
  int equal = 0;
  return comes_true([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto launcher = children_of(command.pid());
    if (launcher.empty()) return false;
    const auto status = read_file("/proc/" + std::to_string(launcher[0]) + "/status");
    const auto at = status.find("VmRSS:");
    const auto now = at == std::string::npos ? 0 : std::atoll(status.c_str() + at + 6);
    equal = now > (64 << 10) && std::exchange(before, now) == now ? equal + 1 : 0;
    return equal == kSamples;
  });
}

// promise: launcher#output
TEST(RunPause, AReaderThatPausesDoesNotStopTheWorkers) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", write_lines(done)});
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(done); }));  // nobody reads yet
  for (int times = 0; times < 20;
       ++times) {  // a signal that does not ask for the end drops nothing
    command.signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(command.finish(), 0);
  expect_all_lines(command.out);
  EXPECT_THAT(command.err, Not(HasSubstr("cannot keep")));
}

// promise: launcher#output
TEST(RunPause, WhereNoMoreIsKeptWorkersWaitForTheReaderAndNothingIsLost) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", kWriteTooMuch + "; : > " + done});
  EXPECT_TRUE(becomes_full(command));
  EXPECT_FALSE(std::filesystem::exists(done));
  EXPECT_EQ(command.finish(), 0);
  EXPECT_EQ(count_of(command.out, "[0] " + kWide + "\n"), kManyLines);
  EXPECT_TRUE(std::filesystem::exists(done));
  EXPECT_EQ(count_of(command.err,
                     "tutti run: cannot keep more than 64 MiB of what nobody reads; "
                     "workers wait for the reader\n"),
            1);
}

// promise: launcher#output
TEST(RunPause, AnInterruptedRunEndsWhereNoMoreIsKeptAndNobodyReads) {
  RunningCommand command({"run", "-n", "1", "yes", kWide});
  EXPECT_TRUE(becomes_full(command));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(/*read_out=*/false), 128 + SIGTERM);
}

// promise: launcher#output
TEST(RunPause, WhereNoMoreIsKeptARestartWaitsForTheReaderAndNothingOutlivesItsWorker) {
  for (const bool interrupted : {false, true}) {
    const TemporaryFolder folder;
    const std::string go = folder.file("go");
    const std::string child = folder.file("child");
    const std::string again = folder.file("again");
    RunningCommand command({"run", "-n", "1", "--restarts", "1", "/bin/sh", "-c",
                            "if [ $TUTTI_RESTART = 1 ]; then : > " + again +
                                "; exit 0; fi; setsid yes " + kWide + " & echo $! > " + child +
                                "; while [ ! -e " + go + " ]; do sleep 0.02; done; exit 3"});
    ASSERT_TRUE(becomes_full(command));
    const WatchedProcess left(std::stoi(read_file(child)));
    ASSERT_TRUE(left.exists());
    create_file(go);
    EXPECT_TRUE(left.ends(kTestDeadline));  // nobody reads yet
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_FALSE(std::filesystem::exists(again));
    if (interrupted) command.signal(SIGTERM);
    EXPECT_EQ(command.finish(/*read_out=*/!interrupted), interrupted ? 128 + SIGTERM : 0);
    EXPECT_EQ(std::filesystem::exists(again), !interrupted);
    EXPECT_EQ(count_of(command.err, "cannot keep"), interrupted ? 0 : 1);
  }
}

// promise: launcher#stop-and-resume
TEST(RunPause, CtrlZStopsAllWorkersAndWhatTheyStarted) {
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                          "timeout 1000 sh -c 'echo pid=$$; exec sleep 1000' & echo pid=$$ "
                          "launcher=$PPID; wait"});
  ASSERT_TRUE(command.wait_for_numbers("pid", 4));
  auto pids = numbers_after(command.out, "pid");
  pids.push_back(numbers_after(command.out, "launcher").at(0));
  pids.push_back(command.pid());
  for (int times = 0; times < 2; ++times) {
    command.signal(SIGTSTP);
    for (const int pid : pids) EXPECT_TRUE(comes_true([&] { return is_paused(pid); }));
    command.signal(SIGCONT);
    for (const int pid : pids) EXPECT_TRUE(comes_true([&] { return !is_paused(pid); }));
  }
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 128 + SIGTERM);
}

// promise: launcher#stop-and-resume
TEST(RunPause, WhatAWorkerHadStoppedItselfStaysStopped) {
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c",
                          "sleep 1000 & kill -STOP $!; echo child=$! pid=$$; wait"});
  ASSERT_TRUE(command.wait_for_numbers("child"));
  const pid_t child = numbers_after(command.out, "child").at(0);
  const pid_t worker = numbers_after(command.out, "pid").at(0);
  ASSERT_TRUE(comes_true([&] { return is_paused(child); }));
  command.signal(SIGTSTP);
  EXPECT_TRUE(comes_true([&] { return is_paused(worker) && is_paused(command.pid()); }));
  command.signal(SIGCONT);
  EXPECT_TRUE(comes_true([&] { return !is_paused(worker); }));
  EXPECT_TRUE(is_paused(child));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 128 + SIGTERM);
}

// The time of the stop and after it is what these tests are about.
void expect_success_after_stop(const std::vector<std::string>& options,
                               const std::string& join_deadline) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {"run", "-n", "3"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {TUTTI_WAITING_WORKER, folder.file("go")});
  if (!join_deadline.empty()) arguments.push_back(join_deadline);
  RunningCommand command(arguments);
  EXPECT_TRUE(command.wait_for_numbers("waiting", 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // most are in their wait now
  command.signal(SIGTSTP);
  EXPECT_TRUE(comes_true([&] { return is_paused(command.pid()); }));
  std::this_thread::sleep_for(std::chrono::seconds(6));
  command.signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the others look around meanwhile
  create_file(folder.file("go"));
  EXPECT_EQ(command.finish(), 0) << command.err;
}

// promise: errors#deadlines, launcher#stop-and-resume
TEST(RunPause, StoppedTimeIsNotLateness) { expect_success_after_stop({"--deadline", "4"}, ""); }

// promise: errors#deadlines
TEST(RunPause, StoppedTimeIsNotLatenessInJoin) { expect_success_after_stop({}, "4"); }

TEST(RunPause, ASignalToEndArrivesAtAStoppedRunWhenItIsResumed) {
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", "echo pid=$$; exec sleep 1000"});
  ASSERT_TRUE(command.wait_for_numbers("pid"));
  command.signal(SIGTSTP);
  EXPECT_TRUE(comes_true([&] { return is_paused(command.pid()); }));
  command.signal(SIGTERM);
  command.signal(SIGCONT);
  EXPECT_EQ(command.finish(), 128 + SIGTERM);
}

// promise: launcher#stop-and-resume
TEST(RunPause, NobodyIsStoppedWhereNobodyCouldResume) {
  // A session of its own without a shell, as in a container: `setsid tutti run …`
  RunningCommand command(
      {"run", "-n", "1", "/bin/sh", "-c", "echo pid=$$ launcher=$PPID; exec sleep 1000"},
      {.before = {"setsid", "--fork", "--wait"}});
  ASSERT_TRUE(command.wait_for_numbers("launcher"));
  const pid_t launcher = numbers_after(command.out, "launcher").at(0);
  const pid_t worker = numbers_after(command.out, "pid").at(0);
  const pid_t keeper = children_of(command.pid()).at(0);
  kill(keeper, SIGTSTP);
  kill(keeper, SIGTERM);
  EXPECT_TRUE(WatchedProcess(worker).ends(kTestDeadline));
  EXPECT_TRUE(comes_true([&] { return children_of(launcher).empty(); }));
  EXPECT_NE(command.finish(), 0);  // what `setsid` makes of an end by a signal
}

}  // namespace
}  // namespace tutti
