// The examples under launchers other than `tutti run`, with the bytes that it gives.

#include <gmock/gmock.h>

#include <regex>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// A shell's arguments follow `$program`; the script starts it on three workers.
struct Launcher {
  const char* name;   ///< of the command, which has to be there
  const char* is_it;  ///< a command that succeeds if it is the one that is meant
  const char* script;
  const char* starter;  ///< what Tutti calls it
};

std::ostream& operator<<(std::ostream& to, const Launcher& launcher) { return to << launcher.name; }

constexpr const char* kProgramText = " --rows 3 --length 12 --hidden 20 --seed 5 ";

std::string program(const std::string& options, int steps = 4) {
  return std::string(TUTTI_EXAMPLES) + "/char_lm --text " + TUTTI_SOURCE + "/LICENSE" +
         kProgramText + options + " --steps " + std::to_string(steps);
}

Finished run_shell(const std::string& script) {
  // Nothing that this test itself was started by.
  CommandSetup setup{.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                     "OMP_NUM_THREADS"}};
  setup.before = {"sh", "-c", script};
  return run_command({}, setup);
}

std::string end_of(const Finished& run) {
  std::smatch found;
  const std::regex pattern("step 4 loss [0-9.]+ parameters sha256 [0-9a-f]{64}");
  return std::regex_search(run.out, found, pattern) ? found[0] : std::string();
}

class OtherLaunchers : public ::testing::TestWithParam<Launcher> {};

// promise: clusters#other-launchers-and-several-hosts
TEST_P(OtherLaunchers, GiveTheBytesOfTuttiRun) {
  const auto& launcher = GetParam();
  if (run_shell(std::string("command -v ") + launcher.name).status != 0) {
    GTEST_SKIP() << launcher.name << " is not installed";
  }
  if (run_shell(launcher.is_it).status != 0) GTEST_SKIP() << launcher.name << " is another one";
  for (const char* const options : {"--micro-batches 4", "--shards 5"}) {
    const auto here =
        run_shell(std::string(TUTTI_EXAMPLES) + "/tutti run -n 3 " + program(options));
    const auto there = run_shell("program='" + program(options) + "'; " + launcher.script);
    ASSERT_EQ(there.status, 0) << there.out << there.err;
    EXPECT_THAT(there.out + there.err,
                HasSubstr(std::string(launcher.starter) +
                          " has started 3 workers on this host, threads each: 1"));
    EXPECT_NE(end_of(here), "") << here.err;
    EXPECT_EQ(end_of(there), end_of(here)) << there.out;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, OtherLaunchers,
    ::testing::Values(
        // What torchrun sets, without it: as scripts do that know no other launcher.
        Launcher{
            "sh", "true",
            "for r in 0 1 2; do RANK=$r WORLD_SIZE=3 sh -c \"$program\" & all=\"$all $!\"; done; "
            "for one in $all; do wait $one || exit 1; done",
            "torchrun"},
        Launcher{"torchrun", "torchrun --help", "torchrun --nproc-per-node 3 --no-python $program",
                 "torchrun"},
        Launcher{"mpirun", "mpirun --version | grep -E 'Open MPI|Open RTE'",
                 "mpirun --oversubscribe -n 3 $program", "mpirun"},
        Launcher{"mpiexec.hydra", "mpiexec.hydra --version", "mpiexec.hydra -n 3 $program",
                 "mpiexec"},
        Launcher{"srun", "timeout 20 srun --immediate=10 -N 1 -n 1 true",
                 "srun -N 1 -n 3 --oversubscribe $program", "srun"}),
    [](const auto& test) {
      const std::string name = test.param.name;
      return name.substr(0, name.find('.'));
    });

/// Threads of torch's own choice would give other bits.
// promise: clusters#what-differs-from-tutti-run
TEST(OtherLauncher, ThreadsAreThoseOfTheEnvironmentOrOne) {
  const auto with = [](const std::string& environment) {
    return run_shell("for r in 0 1; do RANK=$r WORLD_SIZE=2 TUTTI_LOG=debug " + environment + " " +
                     program("--shards 4") + " & done; wait");
  };
  EXPECT_THAT(with("").err, HasSubstr("intra-op threads 1,"));
  EXPECT_THAT(with("OMP_NUM_THREADS=2").err, HasSubstr("intra-op threads 2,"));
  EXPECT_THAT(with("OMP_NUM_THREADS=1 TUTTI_THREADS=2").err, HasSubstr("intra-op threads 2,"));
}

/// `train; evaluate` on each worker.
// promise: clusters#how-workers-find-one-another
TEST(OtherLauncher, TwoProgramsOneAfterTheOtherMeetTheirOwn) {
  const auto both =
      run_shell("for r in 0 1 2; do RANK=$r WORLD_SIZE=3 sh -c '" + program("--shards 4") + "; " +
                program("--shards 3") + "' & done; wait");
  EXPECT_EQ(both.status, 0) << both.err;
  const std::regex pattern("step 4 loss [0-9.]+ parameters sha256 [0-9a-f]{64}");
  EXPECT_EQ(std::distance(std::sregex_iterator(both.out.begin(), both.out.end(), pattern), {}), 2)
      << both.out << both.err;
}

// promise: clusters#what-differs-from-tutti-run
TEST(OtherLauncher, AWorkerThatIsKilledEndsTheOthersSoon) {
  const auto run = run_shell(
      "log=$(mktemp); for r in 0 1 2; do RANK=$r WORLD_SIZE=3 " + program("--shards 6", 100'000) +
      " 2>$log.$r & all=\"$all $!\"; done; set -- $all; "
      "until grep -q 'trainer: ' $log.0; do sleep 0.01; done; kill -9 $2; "
      "wait $1; first=$?; wait $3; echo statuses $first $?; cat $log.* >&2; rm $log $log.*");
  EXPECT_THAT(run.out, HasSubstr("statuses 1 1")) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 1 ended before reaching")) << run.err;
}

}  // namespace
}  // namespace tutti::test
