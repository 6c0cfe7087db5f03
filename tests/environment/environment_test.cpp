#include "tutti/environment.h"

#include <gmock/gmock.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
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

// promise: environment.h#read
TEST_F(EnvironmentTest, nothing_set_is_nothing_known) {
  const Environment environment = Environment::read();
  EXPECT_FALSE(environment.rank || environment.size || environment.rendezvous_fd);
  EXPECT_FALSE(environment.threads || environment.restart || environment.deadline);
  EXPECT_EQ(environment.profile, "");
  EXPECT_EQ(environment.run, "");
  EXPECT_EQ(environment.log_level, "info");
  EXPECT_FALSE(environment.hub);
  EXPECT_EQ(environment.token, "");
  EXPECT_EQ(environment.interface, "");
  EXPECT_FALSE(environment.launcher);
}

// promise: environment.h#kDefaultLanes, environment.h#link, environment.h#read
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
  EXPECT_THAT(with("TUTTI_HOSTS", "2,1,64").hosts, ::testing::ElementsAre(2, 1, 64));
  EXPECT_THAT(with("TUTTI_HOSTS", "").hosts, ::testing::IsEmpty());
  EXPECT_EQ(with("TUTTI_TOKEN", "a secret").token, "a secret");
  EXPECT_EQ(with("TUTTI_INTERFACE", "eth0").interface, "eth0");
  EXPECT_EQ(with("TUTTI_LINK", "").link, "auto");
  EXPECT_EQ(with("TUTTI_LINK", "tcp").link, "tcp");
  EXPECT_FALSE(with("TUTTI_RANK", "").rank) << "empty counts as unset";
  EXPECT_EQ(with("TUTTI_LINK", "mpi").link, "mpi");
  EXPECT_EQ(with("TUTTI_LANES", "").lanes, kDefaultLanes);
  EXPECT_EQ(with("TUTTI_LANES", "16").lanes, 16);
  EXPECT_EQ(with("TUTTI_MPI_LIBRARY", "a.so").mpi_library, "a.so");
  EXPECT_FALSE(Environment::read().started_by_mpi);
  EXPECT_TRUE(with("PMI_SIZE", "1").started_by_mpi);
  EXPECT_EQ(refusal("TUTTI_LINK", "ucx"), "TUTTI_LINK is \"ucx\": must be auto, gloo, mpi or tcp");
  EXPECT_EQ(refusal("TUTTI_LANES", "0"), "TUTTI_LANES is \"0\": must be a whole number from 1");
  EXPECT_EQ(refusal("TUTTI_LANES", "17"), "TUTTI_LANES is 17: must be 1 to 16");
}

// promise: environment.h#Hub
TEST_F(EnvironmentTest, the_hub_is_an_address_and_a_port) {
  const auto hub = [](const char* text) {
    const auto hub = with("TUTTI_HUB", text).hub;
    return hub ? fmt::format("{} at {}", hub->address, hub->port) : "none";
  };
  EXPECT_EQ(hub("10.0.0.1:29600"), "10.0.0.1 at 29600");
  EXPECT_EQ(hub("node-3.cluster:1"), "node-3.cluster at 1");
  EXPECT_EQ(hub("[fe80::1%eth0]:65535"), "fe80::1%eth0 at 65535");
  EXPECT_EQ(hub(":29600"), " at 29600");
  EXPECT_EQ(hub(""), "none");
  for (const char* text : {"10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "a:-1", "a:x",
                           "::1:29600", "[::1]", "[::1]29600", "[]:1", "a]:1"}) {
    EXPECT_EQ(refusal("TUTTI_HUB", text),
              fmt::format("TUTTI_HUB is \"{}\": must be an address and a port from 1 to 65535, as "
                          "10.0.0.1:29600, [::1]:29600 or :29600",
                          text));
  }
}

// promise: environment.h#libraries
TEST_F(EnvironmentTest, libraries_variables_are_taken_as_they_are) {
  EXPECT_TRUE(Environment::read().libraries.empty());
  with("MKL_CBWR", "AVX2,STRICT");
  with("DNNL_MAX_CPU_ISA", "");
  EXPECT_EQ(with("ATEN_CPU_CAPABILITY", "avx2").libraries,
            (std::map<std::string, std::string>{{"ATEN_CPU_CAPABILITY", "avx2"},
                                                {"MKL_CBWR", "AVX2,STRICT"}}));
}

// promise: environment.h#Environment
TEST_F(EnvironmentTest, malformed_numbers_are_refused_by_name) {
  for (const char* value : {"x", "1x", " 1", "1.5", "-1", "99999999999", "0x1"}) {
    for (const char* name :
         {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_RENDEZVOUS_FD", "TUTTI_THREADS", "TUTTI_RESTART"})
      EXPECT_THAT(refusal(name, value),
                  ::testing::StartsWith(std::string(name) + " is \"" + value + "\""));
  }
  EXPECT_EQ(refusal("TUTTI_THREADS", "0"), "TUTTI_THREADS is \"0\": must be a whole number from 1");
  for (const char* value : {"0", "2,0", "2,x", "2,,1", "-1"}) {
    EXPECT_EQ(
        refusal("TUTTI_HOSTS", value),
        fmt::format("TUTTI_HOSTS is \"{}\": must be whole numbers from 1, with commas between",
                    value));
  }
  EXPECT_EQ(refusal("TUTTI_RANK", "0"), "accepted");
  EXPECT_EQ(refusal("TUTTI_RESTART", "0"), "accepted");
  for (const char* value : {"0", "-3", "nan", "inf", "ten", "1e12", "5s", "0.0001"})
    EXPECT_THAT(refusal("TUTTI_DEADLINE", value), ::testing::HasSubstr("TUTTI_DEADLINE")) << value;
}

/// "torchrun 1/4 2 here, restart 3, job x, threads 6", with what is not known left out.
std::string text_of(const std::optional<Environment::Launcher>& launcher) {
  if (!launcher) return "none";
  auto text = fmt::format("{} {}/{}", launcher->name, launcher->rank, launcher->size);
  if (launcher->on_host) text += fmt::format(" {} here", *launcher->on_host);
  if (launcher->restart != 0) text += fmt::format(", restart {}", launcher->restart);
  if (!launcher->job.empty()) text += ", job " + launcher->job;
  if (launcher->threads) text += fmt::format(", threads {}", *launcher->threads);
  return text;
}

using Variables = std::map<std::string, std::string>;

// promise: environment.h#Launcher, environment.h#launcher
TEST_F(EnvironmentTest, other_launchers_tell_who_this_process_is) {
  const Variables torchrun = {{"RANK", "1"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"TORCHELASTIC_RESTART_COUNT", "3"},
                              {"TORCHELASTIC_RUN_ID", "none"}};
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                              {"PMIX_NAMESPACE", "prterun-a-7@1"}};
  const Variables mpich = {{"PMI_RANK", "0"}, {"PMI_SIZE", "5"}, {"MPI_LOCALNRANKS", "5"}};
  const Variables slurm = {{"SLURM_PROCID", "6"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_STEP_NUM_NODES", "1"},
                           {"SLURM_JOB_ID", "77"},
                           {"SLURM_STEP_ID", "0"}};
  const auto read = [](std::initializer_list<Variables> all) {
    clear();
    for (const auto& variables : all)
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const auto launcher = Environment::read().launcher;
    return (launcher ? launcher->rank_variable + ": " : "") + text_of(launcher);
  };
  EXPECT_EQ(read({torchrun}), "RANK: torchrun 1/4 2 here, restart 3, job none");
  EXPECT_EQ(read({open_mpi}), "OMPI_COMM_WORLD_RANK: mpirun 2/3 3 here, job prterun-a-7@1");
  EXPECT_EQ(read({mpich}), "PMI_RANK: mpiexec 0/5 5 here");
  EXPECT_EQ(read({slurm}), "SLURM_PROCID: srun 6/8 8 here, job 77.0");
  EXPECT_EQ(read({slurm, {{"SLURM_STEP_NUM_NODES", "2"}}}), "SLURM_PROCID: srun 6/8, job 77.0");
  EXPECT_EQ(read({slurm, mpich, open_mpi, torchrun}),
            "RANK: torchrun 1/4 2 here, restart 3, job none");
  EXPECT_EQ(read({slurm, mpich}), "PMI_RANK: mpiexec 0/5 5 here");
  for (const char* list : {"6", "6,2,1"}) {
    EXPECT_EQ(read({mpich, {{"OMP_NUM_THREADS", list}}}),
              "PMI_RANK: mpiexec 0/5 5 here, threads 6");
  }
}

// promise: environment.h#hosts
TEST_F(EnvironmentTest, other_launchers_tell_of_hosts_what_they_know) {
  const auto read = [](const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const auto launcher = *Environment::read().launcher;
    const auto text = [](std::optional<int> number) {
      return number ? std::to_string(*number) : "?";
    };
    return fmt::format("host {} of {}, worker {} of {} there: {}; rank 0 at \"{}\"{}",
                       text(launcher.host), text(launcher.hosts), text(launcher.rank_on_host),
                       text(launcher.on_host), fmt::join(launcher.host_ranks, " "),
                       launcher.address,
                       launcher.port ? fmt::format(", port {}", *launcher.port) : "");
  };
  EXPECT_EQ(read({{"RANK", "4"}, {"WORLD_SIZE", "6"}}),
            "host ? of ?, worker ? of ? there: ; rank 0 at \"\"");
  EXPECT_EQ(read({{"RANK", "4"},
                  {"WORLD_SIZE", "6"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "3"},
                  {"GROUP_RANK", "1"},
                  {"GROUP_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "10.0.0.1"},
                  {"MASTER_PORT", "29500"}}),
            "host 1 of 2, worker 1 of 3 there: 3 4 5; rank 0 at \"10.0.0.1\", port 29500");
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "3"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            "host ? of ?, worker 1 of 2 there: ; rank 0 at \"\"");
  EXPECT_EQ(read({{"PMI_RANK", "3"},
                  {"PMI_SIZE", "4"},
                  {"MPI_LOCALRANKID", "0"},
                  {"MPI_LOCALNRANKS", "2"}}),
            "host ? of ?, worker 0 of 2 there: ; rank 0 at \"\"");
  Variables slurm = {{"SLURM_PROCID", "5"},         {"SLURM_STEP_NUM_TASKS", "6"},
                     {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_ID", "0"},
                     {"SLURM_NODEID", "1"},         {"SLURM_LOCALID", "2"},
                     {"SLURM_GTIDS", "5,1,3"},      {"SLURM_STEP_NODELIST", "n[03-04]"}};
  EXPECT_EQ(read(slurm), "host 1 of 2, worker 2 of 3 there: 1 3 5; rank 0 at \"n03\"");
  for (const auto& [list, first] : Variables{{"a,b", "a"},
                                             {"a", "a"},
                                             {"a[7,9-11]b,c", "a7b"},
                                             {"rack[1-2]n[08-09]", "rack1n08"},
                                             {"broken[", "broken"}}) {
    slurm["SLURM_STEP_NODELIST"] = list;
    EXPECT_THAT(read(slurm), ::testing::EndsWith("rank 0 at \"" + first + "\""));
  }
  slurm["SLURM_GTIDS"] = "1,x";
  EXPECT_THAT(read(slurm), ::testing::HasSubstr("worker 2 of ? there: ;"));
}

// promise: clusters#what-can-go-wrong, environment.h#launcher
TEST_F(EnvironmentTest, what_looks_like_another_launcher_and_is_none) {
  const auto launcher = [](const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    return text_of(Environment::read().launcher);
  };
  EXPECT_EQ(launcher({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "none");
  EXPECT_EQ(launcher({{"WORLD_SIZE", "5"}}), "none") << "a variable of anything";
  EXPECT_EQ(launcher({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}), "none")
      << "the script of an allocation";
  EXPECT_EQ(launcher({{"TUTTI_RANK", "0"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}), "none")
      << "`tutti run` below torchrun";
}

// promise: clusters#what-can-go-wrong
TEST_F(EnvironmentTest, a_launcher_that_contradicts_itself_is_refused) {
  const auto refused = [](const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    try {
      Environment::read();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({{"OMPI_COMM_WORLD_SIZE", "2"}}),
            "OMPI_COMM_WORLD_RANK is not set although OMPI_COMM_WORLD_SIZE is 2: mpirun sets both");
  EXPECT_EQ(refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK is 2: must be 0 to 1, as WORLD_SIZE is 2");
  EXPECT_EQ(refused({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}}),
            "PMI_RANK is \"x\": must be a whole number from 0");
}

// It was a Timeout, a minute later.
// findings-3: C7
TEST_F(EnvironmentTest, a_host_with_more_workers_than_the_job_is_refused) {
  const auto refused = [](const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    try {
      Environment::read();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}),
            "LOCAL_WORLD_SIZE is 3: must be 1 to 2, as WORLD_SIZE is 2");
  EXPECT_EQ(refused({{"OMPI_COMM_WORLD_RANK", "0"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
            "OMPI_COMM_WORLD_LOCAL_SIZE is 4: must be 1 to 2, as OMPI_COMM_WORLD_SIZE is 2");
  EXPECT_EQ(refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "4"}}),
            "MPI_LOCALNRANKS is 4: must be 1 to 2, as PMI_SIZE is 2");
  EXPECT_EQ(
      refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
      "LOCAL_RANK is 2: must be 0 to 1, as LOCAL_WORLD_SIZE is 2");
  EXPECT_EQ(
      refused({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
      "LOCAL_RANK is 0 of the 2 of LOCAL_WORLD_SIZE, RANK 3 of the 4 of WORLD_SIZE: a host "
      "would have ranks from 3 to 4");
  EXPECT_EQ(
      refused({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}),
      "LOCAL_RANK is 1 of the 2 of LOCAL_WORLD_SIZE, RANK 0 of the 4 of WORLD_SIZE: a host "
      "would have ranks from -1 to 0");
}

// promise: environment.h#variables
TEST_F(EnvironmentTest, every_variable_is_listed_with_its_meaning) {
  for (const auto& variable : Environment::variables()) EXPECT_FALSE(variable.meaning.empty());
  EXPECT_EQ(Environment::variables().size(), 53U);
}

}  // namespace
}  // namespace tutti
