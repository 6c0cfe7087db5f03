#include "base/cpu_level.h"

#include <gmock/gmock.h>

namespace tutti {
namespace {

constexpr auto kX86 = Architecture::x86_64;
constexpr auto kArm = Architecture::aarch64;

Processor with(std::set<std::string, std::less<>> flags) { return {.flags = std::move(flags)}; }

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuLevel, SetsWhatEachLibraryAccepts) {
  EXPECT_EQ(find_cpu_level("default", kX86)->settings(),
            (LibrarySettings{{"ATEN_CPU_CAPABILITY", "default"},
                             {"ONEDNN_MAX_CPU_ISA", "SSE41"},
                             {"MKL_CBWR", "COMPATIBLE"}}));
  EXPECT_EQ(
      find_cpu_level("avx2", kX86)->settings(),
      (LibrarySettings{
          {"ATEN_CPU_CAPABILITY", "avx2"}, {"ONEDNN_MAX_CPU_ISA", "AVX2"}, {"MKL_CBWR", "AVX2"}}));
  EXPECT_EQ(find_cpu_level("avx512", kX86)->settings(),
            (LibrarySettings{{"ATEN_CPU_CAPABILITY", "avx512"},
                             {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE"},
                             {"MKL_CBWR", "AVX512"}}));
  EXPECT_EQ(find_cpu_level("native", kX86), nullptr);
  EXPECT_EQ(find_cpu_level("AVX2", kX86), nullptr);
}

// findings-3: A5
TEST(CpuLevel, OfArmSetsWhatItsLibrariesAccept) {
  EXPECT_EQ(find_cpu_level("default", kArm)->settings(),
            (LibrarySettings{{"ATEN_CPU_CAPABILITY", "default"},
                             {"ONEDNN_MAX_CPU_ISA", "ADVANCED_SIMD"}}));
  for (const char* name : {"sve128", "sve256"}) {
    EXPECT_EQ(find_cpu_level(name, kArm)->settings(),
              (LibrarySettings{{"ATEN_CPU_CAPABILITY", name}}));
    EXPECT_EQ(find_cpu_level(name, kX86), nullptr);
  }
  EXPECT_EQ(find_cpu_level("avx2", kArm), nullptr);
  EXPECT_EQ(find_cpu_level("default"), find_cpu_level("default", kArchitecture));
  for (const CpuLevel& level : cpu_levels(kArm)) EXPECT_NE(level.unbounded, "");
  for (const CpuLevel& level : cpu_levels(kX86)) EXPECT_EQ(level.unbounded, "");
}

// findings-3: A5
TEST(CpuLevel, OfArmNeedsVectorsOfItsLength) {
  const Processor neoverse_v1 = with({"asimd", "sve", "bf16", "sve256"});
  EXPECT_TRUE(has_level(with({"asimd"}), *find_cpu_level("default", kArm)));
  EXPECT_TRUE(has_level(neoverse_v1, *find_cpu_level("sve256", kArm)));
  EXPECT_FALSE(has_level(neoverse_v1, *find_cpu_level("sve128", kArm)))
      << "libtorch would take its kernels of no SVE";
  EXPECT_FALSE(has_level(with({"sve", "sve256"}), *find_cpu_level("sve256", kArm))) << "bf16";
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuLevel, NeedsAllThatItsLibrariesUse) {
  const Processor haswell = with({"avx2", "fma"});
  EXPECT_TRUE(has_level(with({}), *find_cpu_level("default", kX86)));
  EXPECT_FALSE(has_level(with({"avx2"}), *find_cpu_level("avx2", kX86)))
      << "kernels multiply and add";
  EXPECT_TRUE(has_level(haswell, *find_cpu_level("avx2", kX86)));
  EXPECT_FALSE(has_level(haswell, *find_cpu_level("avx512", kX86)));
  EXPECT_FALSE(has_level(with({"avx2", "fma", "avx512f"}), *find_cpu_level("avx512", kX86)));
  EXPECT_TRUE(has_level(with({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}),
                        *find_cpu_level("avx512", kX86)));
}

// promise: launcher#one-instruction-set-for-all-workers
TEST(CpuLevel, IsRecognisedByItsSettingsAlone) {
  for (const auto architecture : {kX86, kArm}) {
    for (const CpuLevel& level : cpu_levels(architecture)) {
      LibrarySettings settings = level.settings();
      EXPECT_EQ(cpu_level_of(settings), &level);
      settings["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16";
      EXPECT_EQ(cpu_level_of(settings), &level) << "bounds no instruction set";
      settings["MKL_ENABLE_INSTRUCTIONS"] = "SSE4_2";
      EXPECT_EQ(cpu_level_of(settings), nullptr);
    }
  }
  LibrarySettings mixed = find_cpu_level("avx2", kX86)->settings();
  mixed["MKL_CBWR"] = "COMPATIBLE";
  EXPECT_EQ(cpu_level_of(mixed), nullptr);
  mixed.erase("MKL_CBWR");
  EXPECT_EQ(cpu_level_of(mixed), nullptr);
  EXPECT_EQ(cpu_level_of({}), nullptr);
}

}  // namespace
}  // namespace tutti
