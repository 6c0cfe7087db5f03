// What workers write, as `tutti run` shows it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// promise: launcher#output, launcher#what-a-worker-gets
TEST(RunOutput, LinesCarryTheirRankAndKeepTheirStream) {
  const auto run = run_script({"-n", "2"}, "echo out $TUTTI_RANK; echo err $TUTTI_RANK >&2");
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(lines_of(run.out), UnorderedElementsAre("[0] out 0", "[1] out 1"));
  EXPECT_THAT(run.err, HasSubstr("[0] err 0\n"));
  EXPECT_THAT(run.err, HasSubstr("[1] err 1\n"));
}

TEST(RunOutput, OneWorkerHasAPrefixToo) {
  EXPECT_EQ(run_script({"-n", "1"}, "echo hello").out, "[0] hello\n");
}

TEST(RunOutput, LinesStayWholeWhenAllWriteAtOnce) {
  // printf in pieces without newline: lines must be put together again, whatever the pipe cuts.
  constexpr int kLines = 3000;
  const auto run = run_script(
      {"-n", "5"},
      "awk 'BEGIN { for (i = 0; i < 3000; i++) { printf \"r%s \", ENVIRON[\"TUTTI_RANK\"];"
      " for (j = 0; j < i % 97; j++) printf \"abc\"; printf \" %d end\\n\", i } }'");
  EXPECT_EQ(run.status, 0);
  std::map<int, int> next;
  for (const std::string& line : lines_of(run.out)) {
    const int rank = line.size() > 1 ? line[1] - '0' : -1;
    std::string filling;
    for (int i = 0; i < next[rank] % 97; ++i) filling += "abc";
    const std::string expected = fmt::format("[{0}] r{0} {1} {2} end", rank, filling, next[rank]);
    ASSERT_EQ(line, expected);
    ++next[rank];
  }
  ASSERT_EQ(next.size(), 5U);
  for (const auto& [rank, lines] : next) EXPECT_EQ(lines, kLines) << "rank " << rank;
}

TEST(RunOutput, OutputAndErrorsInOneFileStayWholeToo) {
  // `tutti run … 2>&1`: both streams are one pipe.
  const auto run =
      run_command({"run", "-n", "1", "/bin/sh", "-c",
                   std::string("exec ") + TUTTI_COMMAND +
                       " run -n 3 /bin/sh -c 'awk \"BEGIN { for (i = 0; i < 500; i++) { "
                       "printf \\\"%05000d|\\n\\\", i; printf \\\"%0100d|\\n\\\", i > "
                       "\\\"/dev/stderr\\\" } }\"' 2>&1"});
  EXPECT_EQ(run.status, 0);
  std::map<std::size_t, int> sizes;
  for (const std::string& line : lines_of(run.out)) {
    if (line.find("tutti run: ") != std::string::npos) continue;  // a hint, a note
    ++sizes[line.size()];
    ASSERT_EQ(line.back(), '|');
  }
  EXPECT_THAT(sizes, ElementsAre(std::pair<const std::size_t, int>(4 + 4 + 101, 1500),
                                 std::pair<const std::size_t, int>(4 + 4 + 5001, 1500)));
}

TEST(RunOutput, UnfinishedLastLineIsShown) {
  EXPECT_EQ(run_script({"-n", "1"}, "printf 'a\\nno end'").out, "[0] a\n[0] no end\n");
}

// promise: launcher#output
TEST(RunOutput, OfAProgressLineTheLastStateIsALine) {
  EXPECT_EQ(run_script({"-n", "1"}, "printf '1%%\\r50%%\\r100%%\\nnext\\r\\n'").out,
            "[0] 100%\n[0] next\n");
}

// promise: launcher#output
TEST(RunOutput, IsPlainWhenPiped) {
  const auto run = run_script({"-n", "2"}, "echo x", {.environment = {"TERM=xterm", "NO_COLOR"}});
  EXPECT_THAT(run.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run.err, Not(HasSubstr("\x1b")));
}

TEST(RunOutput, IsColouredOnATerminalUnlessForbidden) {
  const auto coloured = run_script({"-n", "2"}, "echo hello",
                                   {.environment = {"TERM=xterm", "NO_COLOR"}, .terminal = true});
  EXPECT_THAT(coloured.out, HasSubstr("\x1b[36m[0]\x1b[0m hello"));
  const auto plain = run_script({"-n", "2"}, "echo hello",
                                {.environment = {"TERM=xterm", "NO_COLOR=1"}, .terminal = true});
  EXPECT_THAT(plain.out, HasSubstr("[0] hello"));
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b[36m")));
}

TEST(RunOutput, OnATerminalRankZerosProgressIsUpdatedInPlace) {
  // Each state is waited for: rank 1's line arrives while rank 0 shows 10%.
  const TemporaryFolder folder;
  const std::string script = fmt::format(
      "wait_for() {{ while [ ! -e {}/$1 ]; do sleep 0.02; done; }}; "
      "if [ $TUTTI_RANK = 0 ]; then printf '10%%\\r'; wait_for second; printf '90%%\\r'; "
      "wait_for third; echo done; else wait_for first; printf '33%%\\r44%%\\n'; fi",
      folder.file("."));
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c", script},
                         {.environment = {"NO_COLOR=1"}, .terminal = true});
  ASSERT_TRUE(command.wait_for("[0] 10%")) << command.out;
  create_file(folder.file("first"));
  ASSERT_TRUE(command.wait_for("44%")) << command.out;
  create_file(folder.file("second"));
  ASSERT_TRUE(command.wait_for("90%")) << command.out;
  create_file(folder.file("third"));
  EXPECT_EQ(command.finish(), 0);
  // 7l and 7h: a terminal cuts what is longer than its line.
  EXPECT_THAT(command.out, HasSubstr("\x1b[?7l[0] 10%\x1b[?7h\r\x1b[K[1] 44%\r\n"
                                     "\x1b[?7l[0] 10%\x1b[?7h\r\x1b[K\x1b[?7l[0] 90%\x1b[?7h"));
  EXPECT_THAT(command.out, HasSubstr("\r\x1b[K[0] done\r\n"));
  EXPECT_THAT(command.out, Not(HasSubstr("33%")));
}

// promise: launcher#output
TEST(RunOutput, LogHoldsWhatEachWorkerWrote) {
  const TemporaryFolder folder;
  const std::string logs = folder.file("a/b");
  const auto run =
      run_script({"-n", "2", "--log", logs}, "echo out $TUTTI_RANK; echo err >&2; printf end");
  EXPECT_EQ(run.status, 0);
  for (const char rank : {'0', '1'}) {
    const auto log = lines_of(read_file(logs + "/rank-" + rank + ".log"));
    EXPECT_THAT(log, UnorderedElementsAre(std::string("out ") + rank, "err", "end"));
  }
}

TEST(RunOutput, LogThatCannotBeCreatedIsRefused) {
  const TemporaryFolder folder;
  const auto run = run_script({"-n", "2", "--log", "/dev/null/logs"}, "echo started");
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err,
              HasSubstr("--log: cannot create the folder /dev/null/logs: Not a directory"));
  EXPECT_EQ(run.out, "");
}

TEST(RunOutput, AWorkerThatClosesItsOutputIsWaitedFor) {
  const TemporaryFolder folder;
  const auto run = run_script(
      {"-n", "2"}, "exec >&- 2>&-; sleep 0.3; : > " + folder.file("$TUTTI_RANK") + "; exit 5");
  EXPECT_EQ(run.status, 5);
  EXPECT_THAT(run.err, HasSubstr("failed first: exit status 5"));
}

TEST(RunOutput, ALeftOverChildDoesNotKeepTheRunAndIsEnded) {
  const TemporaryFolder folder;
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c",
                          "sleep 1000 & echo child=$!; while [ ! -e " + folder.file("go") +
                              " ]; do sleep 0.02; done"});
  ASSERT_TRUE(command.wait_for_numbers("child"));
  const WatchedProcess child(numbers_after(command.out, "child").at(0));
  ASSERT_TRUE(child.exists());
  create_file(folder.file("go"));
  EXPECT_EQ(command.finish(), 0);
  EXPECT_TRUE(child.ends(kTestDeadline));
}

TEST(RunOutput, WhatAChildWritesShortlyAfterItsWorkersEndIsShown) {
  // The worker remains a zombie until the launcher ends.
  EXPECT_EQ(run_script({"-n", "1"},
                       "(until grep -q State:.Z /proc/$$/status; do sleep 0.02; done; echo late) & "
                       "echo early")
                .out,
            "[0] early\n[0] late\n");
}

// promise: launcher#when-a-worker-fails
TEST(RunOutput, AReaderThatLeavesEndsTheRun) {
  const TemporaryFolder folder;
  RunningCommand command(
      {"run", "-n", "2", "/bin/sh", "-c",
       "echo pid=$$; until [ -e " + folder.file("go") + " ]; do sleep 0.02; done; exec yes"});
  ASSERT_TRUE(command.wait_for_numbers("pid", 2));
  const auto pids = numbers_after(command.out, "pid");
  const WatchedProcess first(pids.at(0));
  create_file(folder.file("go"));
  ASSERT_TRUE(command.wait_for("] y\n"));
  command.close_out();
  EXPECT_EQ(command.finish(), 128 + 13);
  EXPECT_TRUE(first.ends(kTestDeadline));
}

// promise: launcher#output
TEST(RunOutput, AReaderThatIsStuckDoesNotKeepFailuresFromBeingSeen) {
  const TemporaryFolder folder;
  RunningCommand command(
      {"run", "-n", "2", "/bin/sh", "-c",
       "if [ $TUTTI_RANK = 0 ]; then echo pid=$$ >&2; yes | head -c 9000000; exec sleep "
       "1000; fi; "
       "while [ ! -e " +
           folder.file("go") + " ]; do sleep 0.05; done; exit 4"});
  ASSERT_TRUE(command.wait_for_numbers("pid"));
  const WatchedProcess writer(numbers_after(command.err, "pid").at(0));
  create_file(folder.file("go"));
  EXPECT_TRUE(writer.ends(kTestDeadline));  // though nobody reads
  EXPECT_EQ(command.finish(), 4);
}

// promise: launcher#tutti-run-starting-workers
TEST(RunOutput, SixtyFourWorkers) {
  const auto run = run_script({"-n", "64"}, "echo $TUTTI_RANK of $TUTTI_SIZE");
  EXPECT_EQ(run.status, 0);
  const auto lines = lines_of(run.out);
  const std::set<std::string> different(lines.begin(), lines.end());
  EXPECT_EQ(different.size(), 64U);
  EXPECT_TRUE(different.contains("[ 7] 7 of 64"));
  EXPECT_TRUE(different.contains("[63] 63 of 64"));
}

}  // namespace
}  // namespace tutti
