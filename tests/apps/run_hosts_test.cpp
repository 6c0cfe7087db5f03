// `tutti run --hosts`, where the remote shell is a script that stays on this machine.

#include <gmock/gmock.h>
#include <csignal>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "apps/shell_scripts.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/text/refusal.h"
#include "job/hosts/host_connections.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class RunHosts : public ::testing::Test {
 protected:
  std::string shell(const std::string& script) {
    return write_remote_shell(folder_.file("ssh"), script);
  }
  std::string shell() { return write_remote_shell(folder_.file("ssh")); }
  Finished run(const std::vector<std::string>& options, const std::string& script,
               const std::string& hosts = "localhost:2,127.0.0.1:1,127.0.0.2:2") {
    std::vector<std::string> all = {"--hosts", hosts, "--ssh", shell()};
    all.insert(all.end(), options.begin(), options.end());
    return run_script(all, script);
  }
  TemporaryFolder folder_;
};

// promise: launcher#several-hosts
TEST_F(RunHosts, EachHostStartsItsWorkersWithTheirRanksInTheSameFolder) {
  const auto done = run_command(
      {"run", "--hosts", "localhost:2,127.0.0.1:1,127.0.0.2:2", "--ssh", shell(), "sh", "-c",
       "echo $TUTTI_RANK of $TUTTI_SIZE, hosts $TUTTI_HOSTS, restart $TUTTI_RESTART, $1; "
       "echo $TUTTI_RUN in $(pwd) >&2",
       "x", "it's \"q\" $HOME"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(lines_of(done.out),
              UnorderedElementsAre("[0] 0 of 5, hosts 2,1,2, restart 0, it's \"q\" $HOME",
                                   "[1] 1 of 5, hosts 2,1,2, restart 0, it's \"q\" $HOME",
                                   "[2] 2 of 5, hosts 2,1,2, restart 0, it's \"q\" $HOME",
                                   "[3] 3 of 5, hosts 2,1,2, restart 0, it's \"q\" $HOME",
                                   "[4] 4 of 5, hosts 2,1,2, restart 0, it's \"q\" $HOME"));
  std::set<std::string> runs;
  const std::regex line("\\[\\d\\] (\\w{16}) in (.*)");
  for (const auto& each : lines_of(done.err)) {
    std::smatch match;
    if (!std::regex_match(each, match, line)) continue;
    runs.insert(match[1]);
    EXPECT_EQ(match[2], std::filesystem::current_path().string());
  }
  EXPECT_EQ(runs.size(), 1U) << done.err;
}

// promise: launcher#several-hosts
TEST_F(RunHosts, WorkersOfAllHostsAreOneJob) {
  const auto flag = folder_.file("flag");
  create_file(flag);
  const auto done = run_command({"run", "--hosts", "localhost:2,127.0.0.1:1,127.0.0.2:2", "--ssh",
                                 shell(), TUTTI_WAITING_WORKER, flag});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(numbers_after(done.out, "waiting").size(), 5U);
}

// promise: launcher#several-hosts
TEST_F(RunHosts, AWorkerThatDiesIsLostToThoseOfOtherHostsAndNamedInTheEnd) {
  RunningCommand command(
      {"run", "--hosts", "localhost:2,127.0.0.1:2", "--ssh", shell(), TUTTI_SURVIVING_WORKER});
  ASSERT_TRUE(command.wait_for_numbers("members", 4));
  int victim = 0;
  for (const auto& line : lines_of(command.out))
    if (line.starts_with("[3] pid=")) victim = std::stoi(line.substr(8));
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  EXPECT_THAT(command.out, AllOf(HasSubstr("[0] lost=3\n"), HasSubstr("[1] lost=3\n")));
  EXPECT_EQ(lines_of(command.err).back(),
            "tutti run: rank 3 on host 127.0.0.1 (ranks 2 3) failed first");
}

// promise: launcher#several-hosts
TEST_F(RunHosts, TheTokenIsOnNoCommandLineAndOptionsReachEachHost) {
  const auto done =
      run({"--threads", "3", "--deadline", "7"},
          "echo $TUTTI_THREADS $TUTTI_DEADLINE $TUTTI_TOKEN.; tr '\\0' ' ' < /proc/$PPID/cmdline");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("[0] 3 7 .\n"), HasSubstr("[4] 3 7 .\n"),
                              HasSubstr("--host-index 0 "), HasSubstr("--host-index 2 ")));
  EXPECT_FALSE(std::regex_search(done.out, std::regex("[0-9a-f]{32}"))) << done.out;
}

// promise: launcher#several-hosts
TEST_F(RunHosts, OtherHostsGetTheVariablesThatAreNamedAndOnNoCommandLine) {
  // As a host has it, where nothing of this environment is.
  const auto bare = shell("cd / && exec env -i PATH=\"$PATH\" sh -c \"$2\"");
  const std::map<std::string, std::string> here = {{"A_SECRET", "sesame 'street'\nof two lines"},
                                                   {"NOT_NAMED", "stays"},
                                                   {"TUTTI_LOG", "warn"},
                                                   {"TUTTI_TOKEN", "of another"},
                                                   {"MKL_CBWR", "AVX2"}};
  for (const auto& [name, value] : here) ::setenv(name.c_str(), value.c_str(), 1);
  const auto done = run_command(
      {"run", "--hosts", "localhost:1,127.0.0.1:1", "--ssh", bare, "--env", "A_SECRET", "--env",
       "GIVEN=a=b", "--env", "NONE=", "sh", "-c",
       "echo \"$A_SECRET|$GIVEN|${NONE-unset}|$TUTTI_LOG|$MKL_CBWR|$TUTTI_TOKEN\"; "
       "[ $TUTTI_RANK = 0 ] || echo \"${NOT_NAMED-gone}\"; tr '\\0' ' ' < /proc/$PPID/cmdline"});
  const auto missing = run_command({"run", "--hosts", "localhost:1", "--env", "NOT_SET", "true"});
  for (const auto& [name, value] : here) ::unsetenv(name.c_str());
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* rank : {"[0] ", "[1] "}) {
    EXPECT_THAT(done.out, HasSubstr(std::string(rank) + "sesame 'street'\n"));
  }
  EXPECT_THAT(done.out, HasSubstr("[1] of two lines|a=b||warn|AVX2|\n"));
  EXPECT_THAT(done.out, HasSubstr("[1] gone\n"));
  EXPECT_EQ(std::regex_replace(done.out, std::regex("\\] sesame"), "").find("sesame"),
            std::string::npos);
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.err, HasSubstr("tutti run: --env NOT_SET: is not set here\n"));
}

// promise: launcher#several-hosts
TEST_F(RunHosts, TheFirstFailureEndsAllHostsAndIsTheStatus) {
  const auto done = run({}, "[ $TUTTI_RANK = 3 ] && exit 7; exec sleep 100");
  EXPECT_EQ(done.status, 7);
  EXPECT_THAT(done.err, HasSubstr("tutti run: rank 3 of 5 failed first: exit status 7\n"));
  EXPECT_EQ(lines_of(done.err).back(),
            "tutti run: rank 3 on host 127.0.0.2 (ranks 3 4) failed first");
}

// promise: launcher#several-hosts
TEST_F(RunHosts, AFailureOnTheHubEndsTheOthersToo) {
  const auto done = run({}, "[ $TUTTI_RANK = 0 ] && exit 3; exec sleep 100");
  EXPECT_EQ(done.status, 3);
  EXPECT_EQ(lines_of(done.err).back(),
            "tutti run: rank 0 on host localhost (ranks 0 1) failed first");
}

// promise: launcher#several-hosts
TEST_F(RunHosts, RestartsStartAllHostsAgain) {
  const auto done = run({"--restarts", "1"},
                        "[ $TUTTI_RANK-$TUTTI_RESTART = 2-0 ] && exit 7; "
                        "[ $TUTTI_RESTART = 1 ] && { echo again; exit 0; }; exec sleep 100");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(lines_of(done.out), UnorderedElementsAre("[0] again", "[1] again", "[2] again",
                                                       "[3] again", "[4] again"));
  EXPECT_THAT(done.err, HasSubstr("tutti run: restart 1 of 1\n"));
}

// promise: launcher#several-hosts
TEST_F(RunHosts, ASignalEndsAllHosts) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunningCommand command({"run", "--hosts", "localhost:1,127.0.0.1:2", "--ssh", shell(), "sh",
                            "-c", "echo pid=$$; exec sleep 100"});
    ASSERT_TRUE(command.wait_for_numbers("pid", 3));
    std::vector<WatchedProcess> workers;
    for (const int pid : numbers_after(command.out, "pid")) workers.emplace_back(pid);
    command.signal(signal);
    EXPECT_EQ(command.finish(), 128 + signal);
    for (const auto& worker : workers) EXPECT_TRUE(worker.ends(kTestDeadline));
    EXPECT_THAT(command.err, HasSubstr(": ending all workers"));
  }
}

// promise: launcher#several-hosts
TEST_F(RunHosts, ASignalDuringTheJoinEndsAllHosts) {
  // The second host never comes.
  RunningCommand command({"run", "--hosts", "localhost:1,127.0.0.1:1", "--ssh",
                          shell("echo waiting; exec sleep 100"), "true"});
  ASSERT_TRUE(command.wait_for("waiting"));
  const auto begin = std::chrono::steady_clock::now();
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));  // the join's 60
}

// promise: launcher#several-hosts
TEST_F(RunHosts, WorkersWhoseRemoteShellVanishesAreEnded) {
  const auto in = folder_.file("in");
  const auto ended = folder_.file("ended");
  const auto relay =
      shell("mkfifo " + in + "; setsid sh -c \"$2\" < " + in + " & echo ssh=$$; exec cat > " + in);
  RunningCommand command({"run", "--hosts", "localhost:1,127.0.0.1:1", "--ssh", relay, "sh", "-c",
                          "[ $TUTTI_RANK = 0 ] && exec sleep 100; trap ': > " + ended +
                              "; exit 0' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(command.wait_for_numbers("ssh"));
  ASSERT_TRUE(command.wait_for("ready"));
  ::kill(numbers_after(command.out, "ssh").at(0), SIGKILL);
  // By its own launcher, which asks first: what the other one does at its end is SIGKILL.
  EXPECT_TRUE(comes_true([&] { return std::filesystem::exists(ended); }));
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  EXPECT_THAT(command.err, HasSubstr("host 127.0.0.1 (rank 1) failed first: killed by"));
}

TEST_F(RunHosts, AHostThatCannotBeReachedIsNamed) {
  const auto done = run_command({"run", "--hosts", "localhost:2,nowhere:1", "--ssh",
                                 shell("echo cannot connect to $1 >&2; exit 255"), "sleep", "100"});
  EXPECT_EQ(done.status, 255);
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("cannot connect to nowhere\n"),
                    HasSubstr("tutti run: host nowhere (rank 2) failed first: exit status 255\n")));
}

TEST_F(RunHosts, APortInUseEndsAllHosts) {
  const HubListener other("127.0.0.1", 0);
  const auto done = run({"--port", std::to_string(other.port())}, "sleep 100");
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.err, AnyOf(HasSubstr("the port is in use, by another job or another program")));
}

// promise: launcher#several-hosts
TEST_F(RunHosts, TheHubListensAtTheInterface) {
  const auto done = run({"--interface", "lo"}, "echo $TUTTI_RANK");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(run({"--interface", "eth77"}, "echo $TUTTI_RANK").err,
              HasSubstr("there is no interface \"eth77\" with an address that is up; there are: "));
}

// promise: launcher#several-hosts
TEST_F(RunHosts, LinkAndLanesReachTheWorkersOfAllHosts) {
  const auto done = run({"--link", "gloo", "--lanes", "3"}, "echo \"$TUTTI_LINK $TUTTI_LANES\"");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(lines_of(done.out).size(), 5U) << done.out;
  for (const auto& line : lines_of(done.out)) EXPECT_THAT(line, HasSubstr("gloo 3"));
}

// promise: launcher#several-hosts
TEST_F(RunHosts, HostsThatMakeNoSenseAreRefused) {
  using command::Refusal;
  const auto refused = [](const std::string& hosts) {
    try {
      command::parse_hosts(hosts);
    } catch (const Refusal& refusal) {
      return std::string(refusal.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("a:1,b:64,a:2,[::1]:3"), "accepted");
  for (const char* entry : {"a", "a:", "a:0", "a:65", "a:-1", "a:x", "a:1x", ":2", "-x:2", ""}) {
    EXPECT_EQ(refused("b:1," + std::string(entry) + ",c:1"),
              "--hosts: \"" + std::string(entry) +
                  "\" must be the name of a host, a colon and a number of workers from 1 to 64");
  }
  std::string many = "a:64";
  for (int i = 0; i < 16; ++i) many += ",a:64";
  EXPECT_EQ(refused(many), "--hosts: 1088 workers in all: must be 1 to 1024");
  EXPECT_EQ(command::parse_hosts("[::1]:3").front().name, "::1");
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{}, "neither -n nor --hosts is given"},
      {{"--hosts", "a:1", "-n", "2"}, "-n: not together with --hosts"},
      {{"--hosts", "a:1", "--survivors"}, "--survivors: not together with --hosts"},
      {{"--hosts", "a:1", "--profile", "x"}, "--profile: not together with --hosts"},
      {{"--hosts", "a:1", "--port", "65536"}, "--port 65536: must be 1 to 65535"},
      {{"--hosts", "a:1", "--env", "=x"}, "--env \"=x\": must be NAME or NAME=value"},
      {{"-n", "1", "--env", "x"}, "--env: is for --hosts"},
      {{"-n", "1", "--ssh", "x"}, "--ssh: is for --hosts"},
      {{"-n", "1", "--port", "5"}, "--port: is for --hosts"},
      {{"-n", "1", "--lanes", "2"}, "--lanes: is for --hosts"},
      {{"--hosts", "a:1", "--lanes", "0"}, "--lanes 0: must be 1 to 16"},
      {{"--hosts", "a:1", "--lanes", "17"}, "--lanes 17: must be 1 to 16"},
      {{"--hosts", "a:1", "--link", "mpi"},
       "--link mpi: is for workers that mpirun, mpiexec or srun starts, with TUTTI_LINK=mpi"},
      {{"-n", "1", "--interface", "lo"}, "--interface: is for --hosts"}};
  for (const auto& [options, text] : wrong) {
    const auto done = run_script(options, "true");
    EXPECT_EQ(done.status, 2);
    EXPECT_THAT(done.err, HasSubstr("tutti run: " + text + "\n"));
  }
}

}  // namespace
}  // namespace tutti
