// docs/data_parallel.md: programs that average gradients by hand, and the one with Tutti that takes
// their place, do the same.

#include <unistd.h>

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <string>

#include "support/running_command.h"

namespace tutti::test {
namespace {

const std::string kFolder = TUTTI_EXAMPLES;

Finished run_shell(const std::string& script) {
  CommandSetup setup{.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                     "OMP_NUM_THREADS=1"}};
  setup.before = {"sh", "-c", script};
  return run_command({}, setup);
}

/// What rank 0 has printed: loss by step.
std::map<int, double> losses(const Finished& run) {
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  std::map<int, double> found;
  const std::regex line("step ([0-9]+) loss ([0-9.]+)");
  for (std::sregex_iterator at(run.out.begin(), run.out.end(), line), end; at != end; ++at) {
    EXPECT_TRUE(found.emplace(std::stoi((*at)[1]), std::stod((*at)[2])).second) << run.out;
  }
  EXPECT_EQ(found.size(), 4u) << run.out << run.err;
  return found;
}

/// Sums of two have no order; what is left are roundings of Adam's own.
void expect_close(const std::map<int, double>& by_hand, const std::map<int, double>& with_tutti) {
  for (const auto& [step, loss] : with_tutti) {
    ASSERT_TRUE(by_hand.contains(step));
    EXPECT_NEAR(by_hand.at(step), loss, 0.0005) << "step " << step;
  }
}

std::map<int, double> with_tutti() {
  return losses(run_shell(kFolder + "/tutti run -n 2 " + kFolder + "/first_steps"));
}

TEST(ByHand, OverMpiTwoWorkersHaveTheLossesOfTutti) {
  const auto program = kFolder + "/plain_first_steps_mpi";
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "no MPI was found when this was built";
  if (run_shell("command -v mpirun").status != 0) GTEST_SKIP() << "mpirun is not installed";
  expect_close(losses(run_shell("mpirun -n 2 --oversubscribe " + program)), with_tutti());
}

TEST(ByHand, OverAProcessGroupTwoWorkersHaveTheLossesOfTutti) {
  const auto program = kFolder + "/plain_first_steps_gloo";
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "no Gloo headers when this was built";
  const auto port = std::to_string(20'000 + ::getpid() % 12'000);
  expect_close(losses(run_shell("export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
                                "; for r in 0 1; do RANK=$r " + program +
                                " & all=\"$all $!\"; done; "
                                "for one in $all; do wait $one || exit 1; done")),
               with_tutti());
}

}  // namespace
}  // namespace tutti::test
