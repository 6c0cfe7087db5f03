// The examples on several hosts: launchers of their own, whose workers share no memory with those
// of the other ones, on one machine.

#include <unistd.h>

#include <gmock/gmock.h>

#include <regex>
#include <string>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string program(const std::string& options, int steps = 4) {
  return std::string(TUTTI_EXAMPLES) + "/char_lm --text " + TUTTI_SOURCE +
         "/LICENSE --rows 3 --length 12 --hidden 20 --seed 5 " + options + " --steps " +
         std::to_string(steps);
}

Finished run_shell(const std::string& script) {
  CommandSetup setup{.environment = {"OMP_NUM_THREADS"}};
  setup.before = {"sh", "-c", script};
  return run_command({}, setup);
}

/// A port that nothing else is likely to use.
int port() {
  static int calls = 0;
  return 20'000 + (::getpid() * 16 + calls++) % 12'000;
}

/// Shell functions: `host H` starts that host's workers of $program and waits for them; $each are
/// the workers of a host, $hosts the hosts.
std::string hosts_of(int hosts, int each, const std::string& program) {
  return "program='" + program + "'; each=" + std::to_string(each) +
         "; hosts=" + std::to_string(hosts) + R"(
    export TUTTI_HUB=127.0.0.1:)" +
         std::to_string(port()) + R"( TUTTI_TOKEN=a-secret-of-this-test
    export WORLD_SIZE=$((hosts * each)) LOCAL_WORLD_SIZE=$each
    host() {
      all=
      for l in $(seq 0 $((each - 1))); do
        RANK=$(($1 * each + l)) LOCAL_RANK=$l GROUP_RANK=$1 $program & all="$all $!"
        echo $! >$pids.$(($1 * each + l))
      done
      status=0
      for one in $all; do wait $one || status=1; done
      exit $status
    }
    pids=$(mktemp); trap 'rm -f $pids $pids.*' EXIT
    started=
    for h in $(seq 0 $((hosts - 1))); do (trap - EXIT; host $h) & started="$started $!"; done
  )";
}

constexpr const char* kWait =
    "status=0; for one in $started; do wait $one || status=1; done; "
    "exit $status";

std::string end_of(const Finished& run, int step = 4) {
  std::smatch found;
  const std::regex pattern("step " + std::to_string(step) +
                           " loss [0-9.]+ parameters sha256 [0-9a-f]{64}");
  return std::regex_search(run.out, found, pattern) ? found[0] : std::string();
}

// promise: clusters#several-hosts
TEST(SeveralHosts, GiveTheBytesOfOneHost) {
  for (const char* const options :
       {"--micro-batches 4", "--shards 5", "--micro-batches 2 --codec topk:0.1",
        "--shards 5 --logical-workers 2 --codec int8"}) {
    const auto here =
        run_shell(std::string(TUTTI_EXAMPLES) + "/tutti run -n 4 " + program(options));
    EXPECT_NE(end_of(here), "") << here.err;
    for (const auto& [hosts, each] : {std::pair{2, 2}, {4, 1}}) {
      const auto there = run_shell(hosts_of(hosts, each, program(options)) + kWait);
      ASSERT_EQ(there.status, 0) << there.out << there.err;
      EXPECT_EQ(end_of(there), end_of(here)) << there.out << there.err;
    }
  }
}

// promise: clusters#several-hosts
TEST(SeveralHosts, TcpGivesTheBytesOfGloo) {
  const auto over = [&](const char* link) {
    return run_shell("export TUTTI_LINK=" + std::string(link) + "; " +
                     hosts_of(2, 2, program("--shards 5")) + kWait);
  };
  const auto by_links = over("auto");
  const auto by_tcp = over("tcp");
  EXPECT_NE(end_of(by_tcp), "") << by_tcp.err;
  EXPECT_EQ(end_of(by_tcp), end_of(by_links)) << by_links.err;
  EXPECT_THAT(by_tcp.err, HasSubstr("links between hosts: tcp on "));
}

/// A run that stops after `half` steps ends as one that does not, after `whole`.
void expect_resumed(const std::string& options, int half, int whole) {
  const auto one_host = [](const std::string& text) {
    return std::string(TUTTI_EXAMPLES) + "/tutti run -n 3 " + text;
  };
  const auto alone = run_shell(one_host(program(options, whole)));
  const auto run = run_shell("a=$(mktemp -d); b=$(mktemp -d); (" +
                             hosts_of(2, 2, program(options + " --save '$a'", half)) + kWait +
                             ") && " + one_host(program(options + " --load $a", whole)) + " && " +
                             one_host(program(options + " --save $b", half)) + " && (" +
                             hosts_of(3, 1, program(options + " --load '$b'", whole)) + kWait +
                             "); rm -r $a $b");
  const auto end = end_of(alone, whole);
  ASSERT_NE(end, "") << alone.err;
  const auto first = run.out.find(end);
  ASSERT_NE(first, std::string::npos) << run.out << run.err;
  EXPECT_NE(run.out.find(end, first + 1), std::string::npos) << run.out << run.err;
}

// promise: clusters#several-hosts
TEST(SeveralHosts, ACheckpointOfTheirsResumesOnOneHostAndTheReverse) {
  expect_resumed("--shards 5", 2, 4);
}

/// What was sent in step 4 is on its way when the run stops.
// promise: averaging.h#steps
TEST(SeveralHosts, AMeanThatIsOnItsWayIsInACheckpoint) {
  expect_resumed("--shards 5 --logical-workers 4 --averaging diloco:3,warm-up=1,int8,overlap=2", 5,
                 7);
}

// promise: trainer_options.h#logical_workers
TEST(SeveralHosts, ACodecHasOneLogicalWorkerUnlessMoreAreNamed) {
  const auto there = run_shell("export TUTTI_LOG=debug; " +
                               hosts_of(3, 1, program("--shards 5 --codec int8 --report")) + kWait);
  const auto here = run_shell(std::string(TUTTI_EXAMPLES) + "/tutti run -n 2 " +
                              program("--shards 5 --codec int8 --logical-workers 1"));
  EXPECT_NE(end_of(here), "") << here.err;
  EXPECT_EQ(end_of(there), end_of(here)) << there.out << there.err;
  EXPECT_THAT(there.err, HasSubstr("logical workers 1"));
}

/// What it had passed on before it was stopped is chance.
// promise: clusters#a-worker-or-a-host-that-dies
TEST(SeveralHosts, WhereOnlyTheFirstWorkerOfAHostIsStoppedItsOwnHostWaitsForTheDeadline) {
  const auto run =
      run_shell("log=$(mktemp); export TUTTI_DEADLINE=8; " +
                hosts_of(2, 2, program("--shards 8 --log '$log'", 100'000)) +
                "for i in $(seq 600); do [ $(wc -l <$log) -lt 5 ] || break; sleep 0.1; done; "
                "kill -STOP $(cat $pids.2); wait $(echo $started | cut -d ' ' -f 1); "
                "if kill -0 $(cat $pids.3); then echo rank 3 still waits; fi; "
                "while kill -0 $(cat $pids.3); do sleep 0.1; done; kill -9 $(cat $pids.2); wait; "
                "echo at step $(wc -l <$log); rm $log");
  EXPECT_THAT(run.out, ContainsRegex("at step ([5-9]|[0-9][0-9]+)")) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("rank 3 still waits")) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("it was waited for by rank [01]")) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("ha(s|ve) not (reached|passed on) .* within 8")) << run.err;
}

/// It serves the others of its host. Whether they had arrived in that step is chance.
// promise: clusters#a-worker-or-a-host-that-dies
TEST(SeveralHosts, WhereTheFirstWorkerOfAHostDiesAllEndSoon) {
  const auto run =
      run_shell("log=$(mktemp); " + hosts_of(2, 2, program("--shards 8 --log '$log'", 100'000)) +
                "for i in $(seq 600); do [ $(wc -l <$log) -lt 5 ] || break; sleep 0.1; done; "
                "kill -9 $(cat $pids.2); for one in $started; do wait $one; done; "
                "echo at step $(wc -l <$log); rm $log");
  EXPECT_THAT(run.out, ContainsRegex("at step ([5-9]|[0-9][0-9]+)")) << run.out << run.err;
  EXPECT_THAT(run.err, ContainsRegex("(rank|ranks 2) [23] ended before reaching")) << run.err;
  EXPECT_THAT(run.err, Not(ContainsRegex("[01] ended"))) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("it was waited for by rank [01]")) << run.err;
  EXPECT_THAT(run.err, HasSubstr("it was waited for by rank 3")) << run.err;
}

std::string surviving(const std::string& rest) {
  return std::string(TUTTI_EXAMPLES) + "/fault_tolerance " + rest;
}

/// The example of docs/errors.md on two hosts of two workers, of which one is killed after
/// the first checkpoint.
Finished run_with_a_loss(int victim, const std::string& steps) {
  return run_shell("dir=$(mktemp -d); " + hosts_of(2, 2, surviving("'$dir'/run " + steps)) +
                   "for i in $(seq 600); do ! ls $dir/run/step-*/manifest.json >$pids.ls 2>&1 || "
                   "break; sleep 0.1; done; kill -9 $(cat $pids." +
                   std::to_string(victim) +
                   "); for one in $started; do wait $one && echo no worker failed; done; "
                   "rm -r $dir");
}

/// The workers of each host resumed as a job of their own.
// promise: clusters#a-worker-or-a-host-that-dies, errors#a-trainer-resumes-from-its-checkpoint
TEST(SeveralHosts, WhereTheFirstWorkerOfAHostDiesTheOthersResumeAsOneJob) {
  const auto run = run_with_a_loss(2, "600");
  const auto alone = run_shell("dir=$(mktemp -d); " + std::string(TUTTI_EXAMPLES) +
                               "/tutti run -n 1 " + surviving("$dir/run 600; rm -r $dir"));
  std::smatch end;
  ASSERT_TRUE(std::regex_search(alone.out, end, std::regex("parameters sha256 [0-9a-f]{64}")));
  for (const char* const worker : {"worker 0 of 2", "worker 1 of 2"}) {
    EXPECT_THAT(run.out, HasSubstr(std::string(worker) + " resumes after step")) << run.err;
    EXPECT_THAT(run.out, HasSubstr(std::string(worker) + " ends with " + end[0].str())) << run.err;
  }
  EXPECT_THAT(run.out, Not(HasSubstr(" of 1 "))) << run.err;
  // Others may not be known to be out of reach yet.
  EXPECT_THAT(run.err,
              ContainsRegex("rank 2 ended, through which its host reaches the others: the "
                            "making of group \"training\" of ranks ([01] )*3 is not possible"));
}

/// Here too the workers of each host resumed as a job of their own.
// promise: errors#a-trainer-resumes-from-its-checkpoint
TEST(SeveralHosts, WithoutRankZeroNobodyResumes) {
  const auto run = run_with_a_loss(0, "100000");
  EXPECT_THAT(run.out, HasSubstr("worker 3 of 4 resumes after step 0")) << run.err;
  EXPECT_THAT(run.out, Not(ContainsRegex(" of [123] |no worker failed"))) << run.err;
  EXPECT_THAT(run.err,
              ContainsRegex("rank 0 ended, through which its host reaches the others: the "
                            "making of group \"training\" of ranks 1( [23])* is not possible"));
  for (const char* const rank : {"2", "3"}) {
    EXPECT_THAT(run.err, HasSubstr("rank 0 ended or cannot be reached, through which the host of "
                                   "rank " +
                                   std::string(rank) + " reaches the others: the making of group"));
  }
}

// promise: clusters#what-can-go-wrong, job.h#join
TEST(SeveralHosts, WithoutAHubItIsSaidWhatIsMissing) {
  const auto run = run_shell(hosts_of(2, 1, program("--shards 4")) + kWait + "; ");
  EXPECT_EQ(run.status, 0) << run.err;
  const auto without =
      run_shell("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 " + program("--shards 4"));
  EXPECT_NE(without.status, 0);
  EXPECT_THAT(without.err, HasSubstr("TUTTI_HUB (address:port at the host of rank 0)"));
  EXPECT_THAT(without.err, HasSubstr("TUTTI_TOKEN"));
}

}  // namespace
}  // namespace tutti::test
