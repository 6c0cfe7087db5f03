#include "tutti/environment.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

class EnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const auto& variable : Environment::variables())
      ::unsetenv(std::string(variable.name).c_str());
  }
  static Environment with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    return Environment::read();
  }
  static std::string refusal(const char* name, const char* value) {
    clear();
    try {
      with(name, value);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(EnvironmentTest, nothing_set_is_nothing_known) {
  const Environment environment = Environment::read();
  EXPECT_FALSE(environment.rank || environment.size || environment.rendezvous_fd);
  EXPECT_FALSE(environment.threads || environment.restart || environment.deadline);
  EXPECT_EQ(environment.profile, "");
  EXPECT_EQ(environment.run, "");
  EXPECT_EQ(environment.log_level, "info");
  EXPECT_EQ(environment.foreign_launcher, "");
}

TEST_F(EnvironmentTest, reads_each_variable) {
  EXPECT_EQ(with("TUTTI_RANK", "0").rank, 0);
  EXPECT_EQ(with("TUTTI_SIZE", "64").size, 64);
  EXPECT_EQ(with("TUTTI_RENDEZVOUS_FD", "5").rendezvous_fd, 5);
  EXPECT_EQ(with("TUTTI_THREADS", "12").threads, 12);
  EXPECT_EQ(with("TUTTI_RESTART", "3").restart, 3);
  EXPECT_EQ(with("TUTTI_RUN", "5eed").run, "5eed");
  EXPECT_EQ(with("TUTTI_DEADLINE", "90").deadline, milliseconds(90'000));
  EXPECT_EQ(with("TUTTI_DEADLINE", "0.25").deadline, milliseconds(250));
  EXPECT_EQ(with("TUTTI_PROFILE", "trace.json").profile, "trace.json");
  EXPECT_EQ(with("TUTTI_LOG", "off").log_level, "off");
  EXPECT_FALSE(with("TUTTI_RANK", "").rank) << "empty counts as unset";
}

TEST_F(EnvironmentTest, malformed_numbers_are_refused_by_name) {
  for (const char* value : {"x", "1x", " 1", "1.5", "-1", "99999999999", "0x1"}) {
    for (const char* name :
         {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_RENDEZVOUS_FD", "TUTTI_THREADS", "TUTTI_RESTART"})
      EXPECT_THAT(refusal(name, value),
                  ::testing::StartsWith(std::string(name) + " is \"" + value + "\""));
  }
  EXPECT_EQ(refusal("TUTTI_THREADS", "0"), "TUTTI_THREADS is \"0\": must be a whole number from 1");
  EXPECT_EQ(refusal("TUTTI_RANK", "0"), "accepted");
  EXPECT_EQ(refusal("TUTTI_RESTART", "0"), "accepted");
  for (const char* value : {"0", "-3", "nan", "inf", "ten", "1e12", "5s", "0.0001"})
    EXPECT_THAT(refusal("TUTTI_DEADLINE", value), ::testing::HasSubstr("TUTTI_DEADLINE")) << value;
}

TEST_F(EnvironmentTest, foreign_launchers_are_recognised_by_more_than_one_process) {
  EXPECT_EQ(with("OMPI_COMM_WORLD_SIZE", "1").foreign_launcher, "");
  EXPECT_EQ(with("OMPI_COMM_WORLD_SIZE", "2").foreign_launcher, "mpirun (OMPI_COMM_WORLD_SIZE=2)");
  clear();
  EXPECT_EQ(with("PMI_SIZE", "3").foreign_launcher, "mpiexec (PMI_SIZE=3)");
  clear();
  EXPECT_EQ(with("SLURM_NTASKS", "4").foreign_launcher, "") << "an allocation, not yet a task";
  EXPECT_EQ(with("SLURM_PROCID", "0").foreign_launcher, "srun (SLURM_NTASKS=4)");
  clear();
  EXPECT_EQ(with("WORLD_SIZE", "5").foreign_launcher, "");
  EXPECT_EQ(with("RANK", "1").foreign_launcher, "torchrun (WORLD_SIZE=5)");
  EXPECT_EQ(with("WORLD_SIZE", "many").foreign_launcher, "") << "not ours to judge";
}

TEST_F(EnvironmentTest, every_variable_is_listed_with_its_meaning) {
  for (const auto& variable : Environment::variables()) EXPECT_FALSE(variable.meaning.empty());
  EXPECT_EQ(Environment::variables().size(), 15U);
}

}  // namespace
}  // namespace tutti
