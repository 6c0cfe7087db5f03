// `tutti run --cpu`: what workers get, and what is refused.

#include "apps/tutti/run/cpu_option.h"

#include <gmock/gmock.h>

#include "apps/tutti/text/refusal.h"
#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::HasSubstr;

const Processor kHaswell{.vendor = "GenuineIntel",
                         .family = "6",
                         .model = "63",
                         .name = "Xeon",
                         .flags = {"avx2", "fma"}};

const Processor kNeoverse{
    .vendor = "0x41", .family = "8", .model = "0xd40", .flags = {"asimd", "bf16", "sve", "sve256"}};

std::string refusal(const std::string& cpu, const std::vector<std::string>& inherited,
                    const Processor& processor = kHaswell,
                    Architecture architecture = Architecture::x86_64) {
  try {
    settings_for(cpu, processor, inherited, architecture);
  } catch (const Refusal& refused) {
    EXPECT_EQ(refused.status(), kUsageStatus);
    return refused.what();
  }
  return "accepted";
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuOption, IsALevelOrNothing) {
  EXPECT_EQ(settings_for("avx2", kHaswell, {}), find_cpu_level("avx2")->settings());
  EXPECT_EQ(settings_for("native", kHaswell, {"PATH=/bin"}), LibrarySettings());
  EXPECT_EQ(settings_for("", kHaswell, {"MKL_CBWR=SSE4_2"}), LibrarySettings());
  EXPECT_EQ(refusal("sse9", {}), "--cpu sse9: must be default, avx2, avx512 or native");
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuOption, ALevelThatTheProcessorLacksIsRefused) {
  EXPECT_EQ(refusal("avx512", {}),
            "--cpu avx512: this processor (GenuineIntel family 6 model 63) has default, avx2");
}

// findings-3: A5
TEST(CpuOption, NamesTheLevelsOfTheArchitecture) {
  const auto arm = Architecture::aarch64;
  EXPECT_EQ(settings_for("sve256", kNeoverse, {}, arm), find_cpu_level("sve256", arm)->settings());
  EXPECT_EQ(levels_of(kNeoverse, arm), (std::vector<std::string>{"default", "sve256"}));
  EXPECT_EQ(refusal("avx2", {}, kNeoverse, arm),
            "--cpu avx2: must be default, sve128, sve256 or native");
  EXPECT_EQ(refusal("sve128", {}, kNeoverse, arm),
            "--cpu sve128: this processor (0x41 family 8 model 0xd40) has default, sve256");
  EXPECT_THAT(refusal("sve256", {"ONEDNN_MAX_CPU_ISA=ADVANCED_SIMD"}, kNeoverse, arm),
              HasSubstr("the environment has ONEDNN_MAX_CPU_ISA=ADVANCED_SIMD"));
  EXPECT_EQ(refusal("sve256", {}), "--cpu sve256: must be default, avx2, avx512 or native");
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuOption, AnEnvironmentThatHasSomethingElseIsRefused) {
  EXPECT_EQ(refusal("avx2", {"ATEN_CPU_CAPABILITY=default"}),
            "--cpu avx2: the environment has ATEN_CPU_CAPABILITY=default, which is something else; "
            "unset it, or leave --cpu out to have workers take it as it is");
  for (const char* variable : {"MKL_CBWR=AVX2,STRICT", "ONEDNN_MAX_CPU_ISA=SSE41",
                               "DNNL_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2"}) {
    EXPECT_THAT(refusal("avx2", {"HOME=/", variable}), HasSubstr(variable));
    EXPECT_THAT(refusal("native", {variable}), HasSubstr(variable));
  }
  EXPECT_EQ(refusal("avx2", {"ATEN_CPU_CAPABILITY=avx2", "MKL_CBWR=", "OMP_NUM_THREADS=4",
                             "ONEDNN_DEFAULT_FPMATH_MODE=BF16", "odd"}),
            "accepted");
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuOption, WorkersGetTheVariables) {
  const std::string show = "echo $ATEN_CPU_CAPABILITY/$ONEDNN_MAX_CPU_ISA/$MKL_CBWR";
  const CommandSetup unbounded{
      .environment = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"}};
  EXPECT_EQ(run_script({"-n", "1", "--cpu", "default"}, show, unbounded).out,
            "[0] default/SSE41/COMPATIBLE\n");
  EXPECT_EQ(run_script({"-n", "1", "--cpu=native"}, show, unbounded).out, "[0] //\n");
  EXPECT_EQ(run_script({"-n", "1"}, show, {.environment = {"MKL_CBWR=AUTO"}}).out, "[0] //AUTO\n")
      << "without the option, what was there";
  const auto refused =
      run_script({"-n", "1", "--cpu", "default"}, show, {.environment = {"MKL_CBWR=AUTO"}});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--cpu default: the environment has MKL_CBWR=AUTO"));
}

}  // namespace
}  // namespace tutti::command
