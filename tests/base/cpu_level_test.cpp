#include "base/cpu_level.h"

#include <gmock/gmock.h>

namespace tutti {
namespace {

Processor with(std::set<std::string, std::less<>> flags) { return {.flags = std::move(flags)}; }

TEST(CpuLevel, SetsWhatEachLibraryAccepts) {
  EXPECT_EQ(find_cpu_level("default")->settings(),
            (LibrarySettings{{"ATEN_CPU_CAPABILITY", "default"},
                             {"ONEDNN_MAX_CPU_ISA", "SSE41"},
                             {"MKL_CBWR", "COMPATIBLE"}}));
  EXPECT_EQ(find_cpu_level("avx2")->settings(), (LibrarySettings{{"ATEN_CPU_CAPABILITY", "avx2"},
                                                                 {"ONEDNN_MAX_CPU_ISA", "AVX2"},
                                                                 {"MKL_CBWR", "AVX2"}}));
  EXPECT_EQ(find_cpu_level("avx512")->settings(),
            (LibrarySettings{{"ATEN_CPU_CAPABILITY", "avx512"},
                             {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE"},
                             {"MKL_CBWR", "AVX512"}}));
  EXPECT_EQ(find_cpu_level("native"), nullptr);
  EXPECT_EQ(find_cpu_level("AVX2"), nullptr);
}

TEST(CpuLevel, NeedsAllThatItsLibrariesUse) {
  const Processor haswell = with({"avx2", "fma"});
  EXPECT_TRUE(has_level(with({}), *find_cpu_level("default")));
  EXPECT_FALSE(has_level(with({"avx2"}), *find_cpu_level("avx2"))) << "kernels multiply and add";
  EXPECT_TRUE(has_level(haswell, *find_cpu_level("avx2")));
  EXPECT_FALSE(has_level(haswell, *find_cpu_level("avx512")));
  EXPECT_FALSE(has_level(with({"avx2", "fma", "avx512f"}), *find_cpu_level("avx512")));
  EXPECT_TRUE(has_level(with({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}),
                        *find_cpu_level("avx512")));
}

TEST(CpuLevel, IsRecognisedByItsSettingsAlone) {
  for (const CpuLevel& level : cpu_levels()) {
    LibrarySettings settings = level.settings();
    EXPECT_EQ(cpu_level_of(settings), &level);
    settings["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16";
    EXPECT_EQ(cpu_level_of(settings), &level) << "bounds no instruction set";
    settings["MKL_ENABLE_INSTRUCTIONS"] = "SSE4_2";
    EXPECT_EQ(cpu_level_of(settings), nullptr);
  }
  LibrarySettings mixed = find_cpu_level("avx2")->settings();
  mixed["MKL_CBWR"] = "COMPATIBLE";
  EXPECT_EQ(cpu_level_of(mixed), nullptr);
  mixed.erase("MKL_CBWR");
  EXPECT_EQ(cpu_level_of(mixed), nullptr);
  EXPECT_EQ(cpu_level_of({}), nullptr);
}

}  // namespace
}  // namespace tutti
