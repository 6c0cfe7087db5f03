#include "base/processor.h"

#include <gmock/gmock.h>
#include <sys/auxv.h>

namespace tutti {
namespace {

constexpr unsigned long kHwcapSve = 1UL << 22;  // of ARM's <asm/hwcap.h>

constexpr const char* kZen =
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
    "model name\t: AMD EPYC 9554\nstepping\t: 1\nflags\t\t: fpu avx2 fma avx512f\n\n"
    "processor\t: 1\nvendor_id\t: Another\ncpu family\t: 26\nmodel\t\t: 18\n"
    "model name\t: Other\nflags\t\t: sse4_1\n";

TEST(Processor, IsTheFirstOfTheText) {
  const Processor processor = parse_processor(kZen);
  EXPECT_EQ(processor.name, "AMD EPYC 9554");
  EXPECT_EQ(type_of(processor), "AuthenticAMD family 25 model 17");
  EXPECT_THAT(processor.flags, testing::UnorderedElementsAre("fpu", "avx2", "fma", "avx512f"));
  EXPECT_EQ(extensions_of(processor), "fma avx2 avx512f") << "in an order of its own, without fpu";
}

TEST(Processor, OfArmHasItsOwnWords) {
  const Processor processor = parse_processor(
      "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
      "CPU variant\t: 0x1\nCPU part\t: 0xd40\n");
  EXPECT_EQ(type_of(processor), "0x41 family 8 model 0xd40");
  EXPECT_EQ(extensions_of(processor), "asimd sve");
  EXPECT_EQ(description_of(processor), "0x41 family 8 model 0xd40") << "ARM gives no name";
}

// findings-3: A5
TEST(Processor, OfThisMachineHasTheLengthOfItsVectors) {
  std::set<std::string> lengths;
  for (const auto& flag : read_processor().flags) {
    if (flag.starts_with("sve") && flag.find_first_not_of("0123456789", 3) == std::string::npos &&
        flag.size() > 4)
      lengths.insert(flag);
  }
  const bool has_vectors =
      kArchitecture == Architecture::aarch64 && (::getauxval(AT_HWCAP) & kHwcapSve) != 0;
  EXPECT_EQ(lengths.size(), has_vectors ? 1 : 0);
}

TEST(Processor, OfATextThatTellsNothingIsUnknown) {
  for (const char* text : {"", "\n\n", "no colon", "model name", ": \n:", "vendor_id\t:"}) {
    EXPECT_EQ(type_of(parse_processor(text)), "unknown family unknown model unknown") << text;
    EXPECT_EQ(extensions_of(parse_processor(text)), "none");
  }
}

TEST(Processor, OfThisMachineIsKnown) { EXPECT_NE(read_processor().vendor, ""); }

}  // namespace
}  // namespace tutti
