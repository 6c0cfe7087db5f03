#include "run/files/arithmetic_facts.h"

#include <gmock/gmock.h>

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Processor zen(const char* model) {
  return {.vendor = "AuthenticAMD", .family = "25", .model = model, .flags = {"avx2", "fma"}};
}

Processor skylake(const char* model) {
  return {.vendor = "GenuineIntel", .family = "6", .model = model, .flags = {"avx2", "fma"}};
}

Arithmetic on(const Processor& processor, const std::string& level = "",
              const std::string& branch = "OFF") {
  return {.processor = processor,
          .settings = level.empty() ? LibrarySettings()
                                    : find_cpu_level(level, Architecture::x86_64)->settings(),
          .instruction_set = "AVX2",
          .torch = "2.13.0",
          .mkl = "2024.2",
          .mkl_branch = branch,
          .onednn = "3.12.0",
          .c_library = "2.36"};
}

std::string difference(const Arithmetic& first, const Arithmetic& second) {
  return facts_diff(compared_facts(first), compared_facts(second), {"on one", "on the other"});
}

TEST(ArithmeticFacts, ThatAreEqualDoNotDiffer) {
  EXPECT_EQ(difference(on(zen("17")), on(zen("17"))), "");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, EachOneOfThemDecides) {
  const Arithmetic usual = on(zen("17"));
  const auto with = [&](const auto& change) {
    Arithmetic other = usual;
    change(other);
    return difference(usual, other);
  };
  EXPECT_EQ(with([](Arithmetic& a) { a.torch = "2.15.0"; }),
            "torch is 2.13.0 on one, 2.15.0 on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.instruction_set = "DEFAULT"; }),
            "instruction set is AVX2 on one, DEFAULT on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.settings["MKL_CBWR"] = "SSE4_2"; }),
            "instruction set is AVX2 on one, AVX2, MKL_CBWR=SSE4_2 on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.settings["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"; }),
            "instruction set is AVX2 on one, AVX2, ONEDNN_DEFAULT_FPMATH_MODE=BF16 on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.mkl_branch = "AUTO"; }),
            "MKL is 2024.2, branch OFF on one, 2024.2, branch AUTO on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.mkl = ""; }),
            "MKL is 2024.2, branch OFF on one, none on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.onednn = "3.11.0"; }),
            "oneDNN is 3.12.0 on one, 3.11.0 on the other");
  EXPECT_EQ(with([](Arithmetic& a) { a.c_library = "2.41"; }),
            "C library is 2.36 on one, 2.41 on the other");
  EXPECT_EQ(
      with([](Arithmetic& a) { a.processor.model = "1"; }),
      "processor is AuthenticAMD family 25 model 17 with fma avx2 on one, AuthenticAMD family "
      "25 model 1 with fma avx2 on the other");
  EXPECT_THAT(with([](Arithmetic& a) { a.processor.flags.insert("avx512_bf16"); }),
              HasSubstr("avx512_bf16"))
      << "a virtual machine may hide some of a processor";
  EXPECT_EQ(with([](Arithmetic& a) { a.processor.name = "AMD EPYC 9654"; }), "")
      << "clock and number of cores decide no bit";
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, EachHasARemedy) {
  const auto remedies = remedies_of_facts(Architecture::x86_64);
  for (const auto& [name, value] : compared_facts(on(zen("17")))) {
    EXPECT_TRUE(remedies.contains(name)) << name;
  }
  EXPECT_THAT(remedies.at("instruction set"), HasSubstr("`tutti run --cpu avx2`"));
  EXPECT_THAT(remedies.at("processor"), HasSubstr("--cpu default"));
  EXPECT_THAT(remedies.at("torch"), Not(HasSubstr("--cpu")));
}

// findings-3: A5
TEST(ArithmeticFacts, OnArmTheProcessorDecidesUnderEveryLevel) {
  const auto arm = Architecture::aarch64;
  const Processor graviton{
      .vendor = "0x41", .family = "8", .model = "0xd40", .flags = {"asimd", "sve", "sve256"}};
  Processor other = graviton;
  other.model = "0xd4f";
  const auto under = [&](const Processor& processor, const char* level) {
    return Arithmetic{.processor = processor,
                      .settings = find_cpu_level(level, arm)->settings(),
                      .instruction_set = "DEFAULT"};
  };
  for (const CpuLevel& level : cpu_levels(arm)) {
    const std::string name(level.name);
    EXPECT_EQ(difference(under(graviton, name.c_str()), under(graviton, name.c_str())), "");
    EXPECT_EQ(difference(under(graviton, name.c_str()), under(other, name.c_str())),
              "processor is 0x41 family 8 model 0xd40 with asimd sve sve256 on one, 0x41 family 8 "
              "model 0xd4f with asimd sve sve256 on the other");
  }
  EXPECT_NE(difference(on(zen("17"), "default", "COMPATIBLE"), under(graviton, "default")), "");
  const auto remedies = remedies_of_facts(arm);
  EXPECT_THAT(remedies.at("processor"),
              AllOf(HasSubstr("processors of one type"), Not(HasSubstr("avx2"))));
  EXPECT_EQ(noted_facts(under(graviton, "default")).at("processor"), "0x41 family 8 model 0xd40");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, ALevelThatMklObeysMakesProcessorsOfSeveralTypesEqual) {
  EXPECT_NE(difference(on(skylake("85")), on(skylake("63"))), "");
  EXPECT_EQ(difference(on(skylake("85"), "avx2", "AVX2"), on(skylake("63"), "avx2", "AVX2")), "");
  EXPECT_EQ(difference(on(skylake("85"), "default", "COMPATIBLE"),
                       on(zen("17"), "default", "COMPATIBLE")),
            "");
  Arithmetic without = on(zen("17"), "avx2", "");
  without.mkl = "";
  Arithmetic other = without;
  other.processor = skylake("85");
  EXPECT_EQ(difference(without, other), "");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, ALevelThatMklDoesNotObeyLeavesTheProcessorToDecide) {
  // MKL takes AUTO in place of AVX2 where the processor is not Intel's.
  EXPECT_EQ(difference(on(zen("17"), "avx2", "AUTO"), on(zen("17"), "avx2", "AUTO")), "");
  EXPECT_EQ(difference(on(zen("17"), "avx2", "AUTO"), on(zen("49"), "avx2", "AUTO")),
            "processor is AuthenticAMD family 25 model 17, by which MKL chooses on one, "
            "AuthenticAMD family 25 model 49, by which MKL chooses on the other");
  EXPECT_THAT(difference(on(zen("17"), "avx2", "AUTO"), on(skylake("85"), "avx2", "AVX2")),
              AllOf(HasSubstr("branch AUTO"), HasSubstr("any of level avx2")));
  // Where it does not tell its branch, the vendor decides.
  EXPECT_NE(difference(on(zen("17"), "avx2", ""), on(zen("49"), "avx2", "")), "");
  EXPECT_EQ(difference(on(skylake("63"), "avx2", ""), on(skylake("85"), "avx2", "")), "");
  EXPECT_EQ(difference(on(zen("17"), "default", ""), on(skylake("85"), "default", "")), "");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, ACheckpointNotesLibrariesAndProcessor) {
  Arithmetic arithmetic = on(zen("17"));
  arithmetic.processor.name = "AMD EPYC 9554";
  const auto facts = noted_facts(arithmetic);
  EXPECT_EQ(facts.at("torch"), "2.13.0 with MKL 2024.2, oneDNN 3.12.0, C library 2.36");
  EXPECT_EQ(facts.at("processor"), "AMD EPYC 9554 (AuthenticAMD family 25 model 17)");
  EXPECT_EQ(noted_differences(facts, facts), "");
  arithmetic.processor.model = "1";
  EXPECT_EQ(noted_differences(facts, noted_facts(arithmetic)),
            "processor is AMD EPYC 9554 (AuthenticAMD family 25 model 17) in the checkpoint, AMD "
            "EPYC 9554 (AuthenticAMD family 25 model 1) here");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(ArithmeticFacts, OfAnOlderCheckpointAreComparedAsFarAsItHasThem) {
  Arithmetic arithmetic = on(zen("17"));
  arithmetic.processor.name = "AMD EPYC 9554";
  const RunFingerprint older = {
      {"torch", "2.13.0"}, {"instruction set", "AVX2"}, {"processor", "AMD EPYC 9554"}};
  EXPECT_EQ(noted_differences(older, noted_facts(arithmetic)), "");
  const RunFingerprint another = {{"torch", "2.1"}, {"unknown to this build", "7"}};
  EXPECT_EQ(noted_differences(another, noted_facts(arithmetic)),
            "torch is 2.1 in the checkpoint, 2.13.0 with MKL 2024.2, oneDNN 3.12.0, C library "
            "2.36 here");
}

}  // namespace
}  // namespace tutti
