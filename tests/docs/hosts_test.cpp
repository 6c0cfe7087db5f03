// script/hosts gives each command a host of its own, limits the links, and leaves nothing behind.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kSkipped = 77;
constexpr auto kPatience = std::chrono::seconds(60);

/// script/hosts as a child of its own, with a pipe for what it prints.
class Hosts {
 public:
  explicit Hosts(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    arguments.insert(arguments.begin(), (source_folder() / "script/hosts").string());
    child_ = fork();
    if (child_ == 0) {
      signal(SIGINT, SIG_DFL);  // A shell in the background would have it ignored.
      dup2(ends[1], 1);
      dup2(ends[1], 2);
      close(ends[0]);
      std::vector<char*> words;
      for (std::string& word : arguments) words.push_back(word.data());
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~Hosts() {
    if (child_ > 0) finish();
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  std::string line() {
    char text[512];
    return fgets(text, sizeof text, output_) != nullptr ? text : "";
  }
  void send(int number) const { kill(child_, number); }
  /// Its wait status; `lines` has what it had left to print.
  int finish() {
    for (std::string text = line(); !text.empty(); text = line()) lines.push_back(text);
    fclose(output_);
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = 0;
    return status;
  }
  std::vector<std::string> lines;

 private:
  pid_t child_ = 0;
  FILE* output_ = nullptr;
};

struct Done {
  int status;
  std::vector<std::string> lines;
};

Done run(std::vector<std::string> arguments) {
  Hosts hosts(std::move(arguments));
  const int status = hosts.finish();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), hosts.lines};
}

/// Processes of this machine whose arguments hold `mark`.
std::vector<std::string> processes_with(const std::string& mark) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream stream(entry.path() / "cmdline");
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    if (text.find(mark) != std::string::npos) found.push_back(entry.path().filename());
  }
  return found;
}

void expect_gone(const std::string& mark) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!processes_with(mark).empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(processes_with(mark), IsEmpty());
}

/// Links of this network, and mounts of these processes.
std::string surroundings() {
  std::vector<std::string> links;
  for (const auto& entry : fs::directory_iterator("/sys/class/net"))
    links.push_back(entry.path().filename());
  std::sort(links.begin(), links.end());
  std::string all = text_of("/proc/self/mounts");
  for (const std::string& link : links) all += link + "\n";
  return all;
}

class HostsScript : public testing::Test {
 protected:
  void SetUp() override {
    const Done done = run({"true"});
    if (done.status == kSkipped) GTEST_SKIP() << done.lines.at(0);
    ASSERT_EQ(done.status, 0);
    before_ = surroundings();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(surroundings(), before_);
  }
  /// In no other command line.
  const std::string mark_ = "4242." + std::to_string(getpid());

 private:
  std::string before_;
};

TEST(HostsScriptRefusals, WrongArgumentsAreRefusedAsAnybody) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"--hosts", "0", "true"},
                                                       {"--hosts", "65", "true"},
                                                       {"--rate", "3", "true"},
                                                       {"--host", "2", "true"},
                                                       {"--probe", "soon"},
                                                       {"--hosts", "1", "--probe"}};
  for (const auto& arguments : wrong) {
    const Done done = run(arguments);
    EXPECT_EQ(done.status, 1) << testing::PrintToString(arguments);
    EXPECT_THAT(done.lines.back(), HasSubstr("usage: script/hosts ["))
        << testing::PrintToString(arguments);
  }
}

TEST(HostsScriptRefusals, WithoutRootItIsSkippedWithTheReason) {
  // Where anyone may read it, which the sources need not be.
  char folder[] = "/tmp/tutti-hosts-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  fs::permissions(folder, static_cast<fs::perms>(0755));
  fs::copy(source_folder() / "script", fs::path(folder) / "script", fs::copy_options::recursive);
  std::string command = std::string(folder) + "/script/hosts true";
  if (geteuid() == 0) command = "setpriv --reuid 65534 --clear-groups bash " + command;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  char text[512] = "";
  EXPECT_NE(fgets(text, sizeof text, pipe), nullptr);
  EXPECT_STREQ(text, "hosts: skipped: hosts are network namespaces, which only root can make\n");
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), kSkipped);
  fs::remove_all(folder);
}

TEST_F(HostsScript, EachHostHasANameAnAddressAndANumber) {
  const Done done = run(
      {"--hosts", "3", "sh", "-c",
       "echo $HOST_RANK of $HOST_COUNT is $(cat /proc/sys/kernel/hostname) at "
       "$(getent hosts host$((HOST_RANK + 1)) | cut -d ' ' -f 1) $(ls /proc/sys/net/ipv4/conf)"});
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.lines,
              UnorderedElementsAre("host1: 0 of 3 is host1 at 10.77.0.1 all default eth0 lo\n",
                                   "host2: 1 of 3 is host2 at 10.77.0.2 all default eth0 lo\n",
                                   "host3: 2 of 3 is host3 at 10.77.0.3 all default eth0 lo\n"));
}

TEST_F(HostsScript, TheStatusIsThatOfTheFirstHostThatFails) {
  EXPECT_EQ(run({"--hosts", "3", "sh", "-c", "exit $((HOST_RANK * 5))"}).status, 5);
}

TEST_F(HostsScript, WhatACommandLeavesBehindEndsWithTheRun) {
  const Done done = run({"sh", "-c", "setsid sleep " + mark_ + " & echo done"});
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.lines, UnorderedElementsAre("host1: done\n", "host2: done\n"));
  expect_gone(mark_);
}

TEST_F(HostsScript, CommandsAreAskedToEndByEachSignalThatEndsIt) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Hosts hosts({"--hosts", "1", "sh", "-c",
                 "trap 'echo asked; exit' TERM; echo started; sleep " + mark_ + " & wait"});
    EXPECT_EQ(hosts.line(), "host1: started\n");
    hosts.send(number);
    const int status = hosts.finish();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    EXPECT_THAT(hosts.lines, ElementsAre("host1: asked\n"));
    expect_gone(mark_);
  }
}

TEST_F(HostsScript, NothingIsLeftAfterSigkill) {
  Hosts hosts({"sh", "-c", "trap '' TERM; echo started; sleep " + mark_});
  hosts.line();
  hosts.line();
  hosts.send(SIGKILL);
  EXPECT_EQ(WTERMSIG(hosts.finish()), SIGKILL);
  expect_gone(mark_);
}

TEST_F(HostsScript, TheProbeMovesBytesBothWaysAndNoneBeyondTheLimit) {
  const Done done = run({"--hosts", "3", "--rate", "1gbit", "--probe", "0.5"});
  EXPECT_EQ(done.status, 0);
  const std::regex pair(
      R"(1gbit +host(\d) -> host(\d) +(\d+) B/s +host(\d) -> host(\d) +(\d+) B/s\n)");
  std::vector<std::string> pairs;
  for (const std::string& line : done.lines) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, pair)) << line;
    pairs.push_back(match.str(1) + match.str(2) + match.str(4) + match.str(5));
    for (const int way : {3, 6}) {
      EXPECT_GT(std::stod(match.str(way)), 1e6) << line;
      EXPECT_LT(std::stod(match.str(way)), 130e6) << line;
    }
  }
  EXPECT_THAT(pairs, ElementsAre("1221", "1331", "2332"));
}

}  // namespace
}  // namespace tutti::test
