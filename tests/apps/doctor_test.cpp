#include "apps/tutti/doctor/doctor_report.h"

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/tutti/run/processor_set.h"
#include "base/system.h"
#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

MachineFacts good_machine() {
  MachineFacts facts;
  facts.version = "1.2.3";
  facts.torch = "2.13.0";
  facts.kernel = "6.1";
  facts.processors_present = 8;
  facts.processors_allowed = 8;
  facts.processors = 8;
  facts.memory = {{"machine", 16 * kGiB, 8 * kGiB}};
  facts.huge_pages_shared = "advise";
  facts.huge_pages_free = 0;
  facts.simd = "AVX2";
  facts.has_gloo = true;
  facts.mpi = "Open MPI v4.1.4";
  return facts;
}

TEST(Doctor, AGoodMachineCanTrain) {
  const auto facts = good_machine();
  const auto verdict = judge(facts);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_THAT(verdict.notes, IsEmpty());
  const auto text = as_text(facts, verdict);
  EXPECT_THAT(text, HasSubstr("8 allowed of 8 present; no cgroup quota"));
  EXPECT_THAT(text, HasSubstr("machine: 8 GiB available of 16 GiB"));
  EXPECT_THAT(text, HasSubstr("between workers     shared memory of a host; TCP between hosts\n"));
  EXPECT_THAT(text, HasSubstr("This machine can train: 8 workers of one thread use all of it."));
}

// promise: launcher#tutti-doctor
TEST(Doctor, SaysWhichLinksThisBuildHas) {
  auto facts = good_machine();
  EXPECT_THAT(as_text(facts, judge(facts)),
              HasSubstr("links               gloo; mpi (Open MPI v4.1.4); tcp\n"));
  EXPECT_EQ(as_json(facts, judge(facts))["links"],
            nlohmann::json({{"gloo", true}, {"mpi", "Open MPI v4.1.4"}, {"tcp", true}}));
  facts.has_gloo = false;
  facts.mpi = "";
  facts.mpi_problem = "there is none";
  EXPECT_THAT(as_text(facts, judge(facts)),
              HasSubstr("no gloo (Debian: libgloo-dev); no mpi: there is none; tcp\n"));
  const auto run = run_command(
      {"doctor"}, {.environment = {std::string("TUTTI_MPI_LIBRARY=/nowhere/libtutti_mpi.so")}});
  EXPECT_THAT(run.out, HasSubstr("no mpi: the library through which Tutti calls MPI cannot be "
                                 "loaded (/nowhere/libtutti_mpi.so"));
  EXPECT_EQ(run.status, 0);
}

TEST(Doctor, WhatStopsTrainingIsAProblem) {
  auto facts = good_machine();
  facts.sealed_memory_problem = "no memfd";
  facts.life_line_problem = "no pidfd";
  facts.memory.push_back({"/sys/fs/cgroup/small", kGiB, 1 << 20});
  const auto verdict = judge(facts);
  EXPECT_THAT(
      verdict.problems,
      ElementsAre("workers cannot share memory: no memfd",
                  "workers cannot notice each other's end: no pidfd",
                  "/sys/fs/cgroup/small has 1 MiB of memory left, at least 256 MiB is needed"));
  const auto text = as_text(facts, verdict);
  EXPECT_THAT(text, HasSubstr("PROBLEM: workers cannot share memory"));
  EXPECT_THAT(text, HasSubstr("This machine cannot train as it is."));
  EXPECT_EQ(as_json(facts, verdict)["can_train"], false);
}

TEST(Doctor, WhatOnlyCostsSpeedIsANote) {
  auto facts = good_machine();
  facts.processor_quota = 2;
  facts.processors = 2;
  facts.huge_pages_shared = "never";
  facts.torch = "";
  const auto verdict = judge(facts);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_THAT(verdict.notes, Contains(HasSubstr("quota leaves 2 of 8 processors")));
  EXPECT_THAT(verdict.notes, Contains(HasSubstr("no huge pages")));
  EXPECT_THAT(as_text(facts, verdict), HasSubstr("core-only build"));
}

// promise: launcher#tutti-doctor
TEST(Doctor, SaysWhatBitsDependOnHere) {
  auto facts = good_machine();
  facts.processor = {.vendor = "GenuineIntel",
                     .family = "6",
                     .model = "63",
                     .name = "Xeon",
                     .flags = {"avx2", "fma", "sse4_1", "pae"}};
  const auto text = as_text(facts, judge(facts));
  EXPECT_THAT(text, HasSubstr("Xeon (GenuineIntel family 6 model 63)"));
  EXPECT_THAT(text, HasSubstr("sse4_1 fma avx2\n"));
  EXPECT_THAT(text, HasSubstr("can be default, avx2 or native; native unless given"));
  EXPECT_THAT(text, HasSubstr("no variable bounds their instruction sets"));
  auto json = as_json(facts, judge(facts));
  EXPECT_EQ(json["processor"]["model"], "63");
  EXPECT_EQ(json["processor"]["architecture"], name_of(kArchitecture));
  EXPECT_EQ(json["cpu_levels"], nlohmann::json({"default", "avx2"}));
  EXPECT_EQ(json["cpu_level"], "native");

  facts.libraries = find_cpu_level("avx2")->settings();
  EXPECT_THAT(judge(facts).notes, IsEmpty());
  EXPECT_EQ(as_json(facts, judge(facts))["cpu_level"], "avx2");
  facts.libraries = {{"ATEN_CPU_CAPABILITY", "default"}};
  EXPECT_THAT(judge(facts).notes, ElementsAre(HasSubstr("ATEN_CPU_CAPABILITY=default: workers on "
                                                        "machines without it are refused")));
  json = as_json(facts, judge(facts));
  EXPECT_EQ(json["library_settings"]["ATEN_CPU_CAPABILITY"], "default");
}

// promise: launcher#tutti-doctor
TEST(Doctor, SaysWhatGpusNeed) {
  auto facts = good_machine();
  facts.gpu_driver.problem = "libcuda.so.1 of NVIDIA's driver is not there";
  EXPECT_THAT(judge(facts).notes, IsEmpty());
  facts.gpus_on_bus = 2;
  EXPECT_THAT(judge(facts).notes,
              ElementsAre(AllOf(HasSubstr("2 GPUs of NVIDIA's cannot be used: libcuda.so.1"),
                                HasSubstr("nvidia-driver"))));
  facts.gpu_driver = {13010, {{"NVIDIA H200", 132, 139 * kGiB, "GPU-12"}}, ""};
  EXPECT_THAT(as_text(facts, judge(facts)),
              HasSubstr("GPUs                NVIDIA H200 (139 GiB, 132 multiprocessors, GPU-12); "
                        "the driver has CUDA 13.1\n"));
  EXPECT_THAT(judge(facts).notes,
              ElementsAre(AllOf(HasSubstr("of its libtorch (2.13.0)"),
                                HasSubstr("LD_PRELOAD=…/torch/lib/libtorch_cuda.so"))));
}

TEST(Doctor, AsksTheDriverOfGpus) {
  const auto folder = std::filesystem::path(TUTTI_STAND_IN_DRIVER).parent_path();
  const auto run =
      run_command({"doctor", "--json"}, {.environment = {"LD_LIBRARY_PATH=" + folder.string()}});
  EXPECT_EQ(run.status, 0);
  const auto gpus = nlohmann::json::parse(run.out)["gpus"];
  EXPECT_EQ(gpus["driver_cuda"], 13000);
  EXPECT_EQ(gpus["visible"][0]["name"], "Stand-in 0");
}

TEST(Doctor, ReadsTheKernelsChoices) {
  EXPECT_EQ(chosen("always within_size [advise] never"), "advise");
  EXPECT_EQ(chosen(""), "");
}

// promise: launcher#tutti-doctor
TEST(Doctor, CommandSaysWhatThisMachineOffers) {
  const auto run = run_command({"doctor"});
  EXPECT_EQ(run.status, 0) << run.out;
  for (const std::string part :
       {"processors", "processor ", "extensions", "run --cpu", "torch, MKL, oneDNN", "memory",
        "huge pages", "SIMD", "between workers", "kernel", "libtorch"})
    EXPECT_THAT(run.out, HasSubstr(part));
  EXPECT_EQ(run.err, "");
}

// promise: launcher#tutti-doctor
TEST(Doctor, StatusIsOneWhenSomethingWouldStopTraining) {
  const auto run = run_command({"doctor"}, {.absent_calls = {SYS_memfd_create}});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.out, HasSubstr("PROBLEM: workers cannot share memory"));
}

// promise: launcher#tutti-doctor
TEST(Doctor, CommandGivesOneJsonObject) {
  const auto run = run_command({"doctor", "--json"});
  EXPECT_EQ(run.status, 0);
  const auto facts = nlohmann::json::parse(run.out);
  EXPECT_EQ(facts["version"], TUTTI_VERSION);
  EXPECT_EQ(facts["can_train"], true);
  EXPECT_EQ(facts["processors"]["allowed"], host_system()->allowed_processors().size());
  EXPECT_GT(facts["memory"][0]["available_bytes"], 0);
}

}  // namespace
}  // namespace tutti::command
