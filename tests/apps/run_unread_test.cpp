// Where what the command writes goes nowhere: a terminal or a pipe that nobody reads, a full disk,
// a closed stream. Nothing but the text may be lost by that.

#include <gmock/gmock.h>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "support/running_command.h"

namespace tutti {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

// More than a pipe or a terminal takes.
std::string write_much(const std::string& then) {
  return "echo $$ > " + then + ".pid; yes 1234567890123456 | head -c 8000000; : > " + then + "; ";
}

pid_t pid_in(const std::string& file) { return std::atoi(read_file(file).c_str()); }

bool exists(const std::string& file) { return std::filesystem::exists(file); }

void expect_end_of_run_on_unread_terminal(int signal) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", write_much(done) + "exec sleep 1000"},
                         {.terminal = true});
  ASSERT_TRUE(comes_true([&] { return exists(done); }));
  const WatchedProcess keeper(command.pid());
  const WatchedProcess worker(pid_in(done + ".pid"));
  const auto children = children_of(command.pid());
  ASSERT_EQ(children.size(), 1U);
  const WatchedProcess launcher(children.at(0));
  const auto start = steady_clock::now();
  command.signal(signal);
  for (const auto* process : {&keeper, &launcher, &worker})
    EXPECT_TRUE(process->ends(kTestDeadline));
  EXPECT_LT(steady_clock::now() - start, seconds(5));
  EXPECT_EQ(command.finish(), 128 + signal);
}

// promise: launcher#output
TEST(RunUnread, ATerminalThatIsNotReadStopsNeitherWorkersNorTheEnd) {
  expect_end_of_run_on_unread_terminal(SIGTERM);
}

// promise: launcher#output
TEST(RunUnread, ATerminalThatIsNotReadKeepsNothingAliveBehindAKilledKeeper) {
  expect_end_of_run_on_unread_terminal(SIGKILL);
}

TEST(RunUnread, ATerminalThatIsNotReadStopsNoTimeline) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command(
      {"run", "-n", "1", "--profile", folder.file("run.json"), "/bin/sh", "-c",
       "printf part > $TUTTI_PROFILE.rank0; " + write_much(done) + "exec sleep 1000"},
      {.terminal = true});
  ASSERT_TRUE(comes_true([&] { return exists(done); }));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(/*read_out=*/false), 128 + SIGTERM);
}

TEST(RunUnread, AllThatIsWrittenReachesATerminalThatIsReadLate) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command(
      {"run", "-n", "1", "/bin/sh", "-c", "seq 100000; : > " + done + "; sleep 0.1"},
      {.environment = {"NO_COLOR=1"}, .terminal = true});
  EXPECT_TRUE(comes_true([&] { return exists(done); }));
  EXPECT_EQ(command.finish(), 0);
  std::size_t lines = 0;
  for (const std::string& line : lines_of(command.out)) lines += line.find("[0]") == 0 ? 1 : 0;
  EXPECT_GE(lines, 99999U);  // a hint may share a line
  EXPECT_THAT(command.out, HasSubstr("100000\r\n"));
}

// promise: launcher#output
TEST(RunUnread, AnInterruptedRunDoesNotWaitForAReaderThatPauses) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    const std::string done = folder.file("done");
    RunningCommand command(
        {"run", "-n", "1", "/bin/sh", "-c", write_much(done) + "exec sleep 1000"});
    ASSERT_TRUE(comes_true([&] { return exists(done); }));
    command.signal(signal);
    EXPECT_EQ(command.finish(/*read_out=*/false), 128 + signal);
  }
}

// promise: launcher#output
TEST(RunUnread, AReaderThatPausesDoesNotDelayRestarts) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command({"run", "-n", "1", "--restarts", "1", "/bin/sh", "-c",
                          "if [ $TUTTI_RESTART = 0 ]; then " + write_much(folder.file("first")) +
                              "exit 3; fi; echo last; : > " + done});
  EXPECT_TRUE(comes_true([&] { return exists(done); }));  // nobody reads yet
  EXPECT_EQ(command.finish(), 0);
  EXPECT_GT(command.out.size(), std::size_t{8000000});
  EXPECT_EQ(lines_of(command.out).back(), "[0] last");
  EXPECT_THAT(command.err, HasSubstr("failed first: exit status 3\ntutti run: restart 1 of 1\n"));
}

// promise: launcher#output
TEST(RunUnread, WhatEarlierAttemptsWroteIsShownWhenTheProgramIsGone) {
  const TemporaryFolder folder;
  const std::string program = folder.file("program");
  const std::string done = folder.file("done");
  std::filesystem::copy_file("/bin/sh", program);
  RunningCommand command({"run", "-n", "1", "--restarts", "1", program, "-c",
                          "rm " + program + "; " + write_much(done) + "exit 3"});
  EXPECT_TRUE(comes_true([&] { return exists(done); }));  // nobody reads yet
  EXPECT_EQ(command.finish(), 126);
  EXPECT_GT(command.out.size(), std::size_t{8000000});
  EXPECT_THAT(command.err, HasSubstr("failed first: exit status 3\n"));
  EXPECT_THAT(lines_of(command.err).back(), HasSubstr("cannot run"));
}

// promise: launcher#output
TEST(RunUnread, ASocketThatIsNotReadStopsNeitherWorkersNorTheEnd) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  // The socket is ready for more than it takes after a short line that nobody reads.
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c",
                          "echo short; sleep 0.2; " + write_much(done) + "exec sleep 1000"},
                         {.socket = true});
  EXPECT_TRUE(comes_true([&] { return exists(done); }));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(/*read_out=*/false), 128 + SIGTERM);
}

TEST(RunUnread, AllThatIsWrittenReachesASocketThatIsReadLate) {
  const TemporaryFolder folder;
  const std::string done = folder.file("done");
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", "seq 100000; : > " + done},
                         {.socket = true});
  EXPECT_TRUE(comes_true([&] { return exists(done); }));
  EXPECT_EQ(command.finish(), 0);
  const auto lines = lines_of(command.out);
  ASSERT_EQ(lines.size(), 100000U);
  for (std::size_t line = 0; line < lines.size(); ++line)
    ASSERT_EQ(lines[line], "[0] " + std::to_string(line + 1));
}

TEST(RunUnread, ASocketThatIsClosedEndsTheRun) {
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", "exec yes"}, {.socket = true});
  ASSERT_TRUE(command.wait_for("[0] y"));
  command.close_out();
  EXPECT_EQ(command.finish(), 128 + SIGPIPE);
}

CommandSetup in_shell(const std::string& redirected) {
  return {.before = {"/bin/sh", "-c", "\"$@\" " + redirected, "sh"}};
}

// promise: launcher#when-a-worker-fails
TEST(RunUnread, ErrorsThatCannotBeWrittenLeaveTheStatus) {
  for (const std::string where : {"2> /dev/full", "2>&-"}) {
    EXPECT_EQ(run_command({"run", "-n", "0", "true"}, in_shell(where)).status, 2) << where;
    EXPECT_EQ(run_command({"run", "-n", "1", "/nonexistent"}, in_shell(where)).status, 127);
    EXPECT_EQ(run_command({"compare", "/nonexistent", "/nonexistent"}, in_shell(where)).status, 2);
    EXPECT_EQ(run_script({"-n", "1"}, "kill -9 $PPID; sleep 1000", in_shell(where)).status,
              128 + SIGKILL);
    EXPECT_EQ(run_script({"-n", "1"}, "exit 3", in_shell(where)).status, 3);
  }
}

// promise: launcher#when-a-worker-fails
TEST(RunUnread, AFullDiskIsNamed) {
  const auto run = run_script({"-n", "1"}, "echo text; exec sleep 1000", in_shell("> /dev/full"));
  EXPECT_EQ(run.status, 128 + SIGPIPE);
  EXPECT_THAT(run.err,
              HasSubstr("tutti run: cannot write to standard output: No space left on device"));
  EXPECT_THAT(run.err, Not(HasSubstr("SIGPIPE")));
}

}  // namespace
}  // namespace tutti
