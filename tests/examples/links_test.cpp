// Links between hosts that are asked for, under launchers whose workers share no memory with those
// of other hosts, on one machine.

#include <unistd.h>

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string letters(const std::string& options, int steps = 4) {
  return std::string(TUTTI_EXAMPLES) + "/char_lm --text " + TUTTI_SOURCE +
         "/LICENSE --rows 3 --length 12 --hidden 20 --seed 5 " + options + " --steps " +
         std::to_string(steps);
}

/// A port that nothing else is likely to use.
int port() {
  static int calls = 0;
  return 12'000 + (::getpid() * 16 + calls++) % 8'000;
}

std::vector<std::string> environment() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS",
          "TUTTI_HUB=127.0.0.1:" + std::to_string(port()), "TUTTI_TOKEN=a-secret-of-this-test"};
}

Finished run_shell(const std::string& script) {
  CommandSetup setup{.environment = environment()};
  setup.before = {"sh", "-c", script};
  return run_command({}, setup);
}

std::string of_one_host(const std::string& program) {
  return std::string(TUTTI_EXAMPLES) + "/tutti run -n 4 " + program;
}

/// What a worker is started with: of host $h, the $l-th of $each.
constexpr const char* kWorker =
    " RANK=$((h * each + l)) LOCAL_RANK=$l GROUP_RANK=$h TORCHELASTIC_RUN_ID=host$h "
    "LOCAL_WORLD_SIZE=$each ";

/// Hosts without MPI. `of_host` may set variables by $h.
std::string hosts(int hosts, int each, const std::string& program,
                  const std::string& of_host = "true") {
  return "each=" + std::to_string(each) + "; export WORLD_SIZE=" + std::to_string(hosts * each) +
         "; for h in $(seq 0 " + std::to_string(hosts - 1) + "); do (" + of_host +
         "; for l in $(seq 0 $((each - 1))); do" + kWorker + program +
         " & all=\"$all $!\"; done; s=0; for one in $all; do wait $one || s=1; done; exit $s) & "
         "started=\"$started $!\"; done; status=0; for one in $started; do wait $one || status=1; "
         "done; exit $status";
}

/// The same, all of them started by one mpirun.
std::string hosts_of_mpi(int hosts, int each, const std::string& program) {
  return "export TUTTI_LINK=mpi each=" + std::to_string(each) +
         " WORLD_SIZE=" + std::to_string(hosts * each) + " program='" + program +
         "'; mpirun --oversubscribe -n $WORLD_SIZE sh -c '"
         "h=$((OMPI_COMM_WORLD_RANK / each)); l=$((OMPI_COMM_WORLD_RANK % each)); export" +
         kWorker + "; echo worker$OMPI_COMM_WORLD_RANK=$$; exec $program'";
}

std::string end_of(const Finished& run) {
  std::smatch found;
  const std::regex pattern("step 4 loss [0-9.]+ parameters sha256 [0-9a-f]{64}");
  return std::regex_search(run.out, found, pattern) ? found[0] : std::string();
}

/// Empty, or why there is no link over MPI here.
std::string missing_mpi() {
  if (run_shell("mpirun --version | grep -E 'Open MPI|Open RTE'").status != 0) {
    return "Open MPI's mpirun is not installed";
  }
  if (::access((std::string(TUTTI_EXAMPLES) + "/libtutti_mpi.so").c_str(), R_OK) != 0) {
    return "no MPI was found when this was built";
  }
  return "";
}

// promise: clusters#other-launchers-and-several-hosts, clusters#several-hosts
TEST(LinkOverMpi, GivesTheBytesOfOneHost) {
  if (const auto missing = missing_mpi(); !missing.empty()) GTEST_SKIP() << missing;
  const std::vector<std::pair<std::string, std::vector<std::pair<int, int>>>> runs = {
      {"--shards 5", {{2, 2}, {4, 1}}}, {"--micro-batches 4", {{2, 2}}}};
  for (const auto& [options, layouts] : runs) {
    const auto here = run_shell(of_one_host(letters(options)));
    EXPECT_NE(end_of(here), "") << here.err;
    for (const auto& [count, each] : layouts) {
      const auto there = run_shell(hosts_of_mpi(count, each, letters(options)));
      EXPECT_EQ(there.status, 0) << there.out << there.err;
      EXPECT_EQ(end_of(there), end_of(here)) << there.out << there.err;
      EXPECT_THAT(there.err + there.out, AllOf(HasSubstr("links between hosts: mpi, Open MPI v"),
                                               HasSubstr("TUTTI_LINK is mpi")));
    }
  }
}

/// Who tells is MPI's launcher, or a worker that it lets live long enough.
TEST(LinkOverMpi, AWorkerThatDiesEndsTheJobAndIsNamed) {
  if (const auto missing = missing_mpi(); !missing.empty()) GTEST_SKIP() << missing;
  RunningCommand run({},
                     {.environment = environment(),
                      .before = {"sh", "-c", hosts_of_mpi(2, 2, letters("--shards 6", 100'000))}});
  for (const char* const worker : {"worker0", "worker1", "worker2", "worker3"}) {
    ASSERT_TRUE(run.wait_for_numbers(worker)) << run.out << run.err;
  }
  ASSERT_TRUE(run.wait_for("links between hosts: mpi")) << run.err;
  std::vector<std::unique_ptr<WatchedProcess>> workers;
  for (int rank = 0; rank < 4; ++rank) {
    const auto number = numbers_after(run.out, "worker" + std::to_string(rank)).at(0);
    workers.push_back(std::make_unique<WatchedProcess>(number));
  }
  ::kill(numbers_after(run.out, "worker2").at(0), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& worker : workers) EXPECT_TRUE(worker->ends(std::chrono::seconds(10)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  RecordProperty("seconds", std::to_string(took.count()));
  EXPECT_NE(run.finish(), 0);
  EXPECT_THAT(run.out + run.err, ContainsRegex("process rank 2 .*signal 9|rank 2 ended"));
}

// promise: clusters#what-can-go-wrong, job.h#Job
TEST(LinkOverMpi, WhatIsMissingIsToldOnAllHosts) {
  std::string text;
  const auto count = [&](const std::string& part) {
    int times = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
    return times;
  };
  // A worker that takes more than the launchers' grace, a second, to tell is ended before it has:
  // on a loaded machine the job is tried again.
  const auto expect_all_told = [&](const std::string& script, const std::string& part, int times) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const auto run = run_shell(script);
      EXPECT_EQ(run.status, 1) << run.out << run.err;
      text = run.err + run.out;
      if (count(part) >= times) break;
    }
    if (count(part) == times) return;
    ADD_FAILURE() << count(part) << " of " << times << ": " << text;
  };
  const auto program = letters("--shards 4");
  expect_all_told("export TUTTI_LINK=mpi TUTTI_MPI_LIBRARY=/nowhere/it.so; " + hosts(2, 2, program),
                  "TUTTI_LINK is mpi, but rank 0 cannot take part: the library through which Tutti "
                  "calls MPI cannot be loaded (/nowhere/it.so: ",
                  4);
  EXPECT_THAT(text, HasSubstr("a build of Tutti makes it, as the target tutti_mpi, where it finds "
                              "an MPI (Debian: libopenmpi-dev); link tutti::mpi, or set "
                              "TUTTI_MPI_LIBRARY"));
  const std::string fake = std::string(TUTTI_EXAMPLES) + "/libsingle_threaded_mpi.so";
  expect_all_told(
      "export OMPI_COMM_WORLD_SIZE=4 TUTTI_LINK=mpi TUTTI_MPI_LIBRARY=" + fake + "; " +
          hosts(2, 2, program, "if [ $h = 1 ]; then export TUTTI_MPI_LIBRARY=libm.so.6; fi"),
      "but rank 2 cannot take part: the library through which Tutti calls MPI "
      "cannot be loaded (libm.so.6 is not of this version of Tutti)",
      4);
  const std::string with_fake = "export TUTTI_LINK=mpi TUTTI_MPI_LIBRARY=" + fake + "; ";
  expect_all_told(with_fake + hosts(2, 1, program),
                  "TUTTI_LINK is mpi, but rank 0 cannot take part: it was not started by mpirun, "
                  "mpiexec or srun, which tell processes of MPI of one another; start all workers "
                  "by that of An MPI of a test, or take another link",
                  2);
  expect_all_told("export PMI_SIZE=2; " + with_fake + hosts(2, 1, program),
                  "rank 0 cannot take part: An MPI of a test does not allow several threads "
                  "(MPI_THREAD_MULTIPLE); initialise MPI so, or leave that to Tutti",
                  2);
}

// promise: clusters#what-can-go-wrong
TEST(LinkOverMpi, RanksThatAreNotThoseOfTheJobAreRefused) {
  if (const auto missing = missing_mpi(); !missing.empty()) GTEST_SKIP() << missing;
  const auto run =
      run_shell("export TUTTI_LINK=mpi; " +
                hosts(2, 1, "$mpi " + letters("--shards 4"), "mpi='mpirun --oversubscribe -n 1'"));
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(
      run.err + run.out,
      ContainsRegex(
          "rank 0 cannot take part: Open MPI v.* has it as rank 0 of 1 and the job as rank 0 of 2; "
          "start all workers by one mpirun, mpiexec or srun of this MPI"));
}

// promise: clusters#other-launchers-and-several-hosts
TEST(LinkOverMpi, IsNotLoadedOnOneHost) {
  const auto run = run_shell("export TUTTI_LINK=mpi TUTTI_MPI_LIBRARY=/nowhere/it.so; " +
                             of_one_host(letters("--shards 4")));
  EXPECT_EQ(run.status, 0) << run.err;
}

// promise: clusters#several-hosts
TEST(ChosenLink, LanesDecideNoByteAndAreLoggedWithTheLink) {
  const auto program = letters("--shards 5");
  const auto here = run_shell(of_one_host(program));
  const auto there = run_shell("export TUTTI_LANES=3; " + hosts(2, 2, program));
  EXPECT_NE(end_of(here), "") << here.err;
  EXPECT_EQ(end_of(there), end_of(here)) << there.err;
  EXPECT_THAT(
      there.err,
      HasSubstr("links between hosts: gloo on 127.0.0.1, 12 lanes, 3 for each kind of message "
                "(TUTTI_LANES); TUTTI_LINK is auto, and this build has Gloo; bound to the "
                "address from which the hub is reached"));
}

// promise: clusters#what-can-go-wrong
TEST(ChosenLink, HostsThatAskForDifferentOnesAreAMismatch) {
  const auto program = letters("--shards 5");
  const auto lanes = run_shell(hosts(2, 1, program, "export TUTTI_LANES=$((h + 1))"));
  EXPECT_EQ(lanes.status, 1);
  EXPECT_THAT(lanes.err,
              ContainsRegex("workers were started differently: rank 0 has .*, TUTTI_LINK auto, "
                            "TUTTI_LANES 1; rank 1 has .*, TUTTI_LINK auto, TUTTI_LANES 2"));
  const auto links = run_shell(hosts(2, 1, program, "[ $h = 0 ] || export TUTTI_LINK=tcp"));
  EXPECT_EQ(links.status, 1);
  EXPECT_THAT(links.err, ContainsRegex("TUTTI_LINK auto, TUTTI_LANES 1; rank 1 has .*, "
                                       "TUTTI_LINK tcp, TUTTI_LANES 1"));
}

// promise: environment.h#link, link.h#LinkPlace, link.h#MakeBackends
TEST(ChosenLink, IsOneOfTheProgramsOwn) {
  const std::string program = std::string(TUTTI_EXAMPLES) + "/own_link_gloo 127.0.0.1 ";
  if (::access((std::string(TUTTI_EXAMPLES) + "/own_link_gloo").c_str(), X_OK) != 0) {
    GTEST_SKIP() << "Gloo's headers were not there when this was built";
  }
  const auto sums = [](const Finished& run) {
    std::smatch found;
    const std::regex pattern("parameters sha256 [0-9a-f]{64}");
    return std::regex_search(run.out, found, pattern) ? found[0].str() : std::string();
  };
  const auto here = run_shell(of_one_host(program + std::to_string(port()) + " 127.0.0.1"));
  EXPECT_NE(sums(here), "") << here.err;
  const auto there = run_shell(hosts(2, 2, program + std::to_string(port()) + " 127.0.0.1"));
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_EQ(sums(there), sums(here));
  EXPECT_THAT(there.err, HasSubstr("links between hosts: my gloo, 4 lanes, 1 for each kind of "
                                   "message (the default); the program has called use_link()"));
  const auto asked = run_shell("export TUTTI_LINK=tcp; " +
                               hosts(2, 1, program + std::to_string(port()) + " 127.0.0.1"));
  EXPECT_EQ(asked.status, 1);
  EXPECT_THAT(asked.err, HasSubstr("use_link(\"my gloo\"): TUTTI_LINK is tcp, which asks for "
                                   "another link; leave it at auto"));
}

}  // namespace
}  // namespace tutti::test
