// Where typed sections lie in their block.

#include "memory/sections.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

struct Part {
  Part(Sections& at, std::size_t count, std::size_t rows)
      : bytes(at, count), numbers(at, count), table(at, rows, count), one(at) {}
  Section<std::uint8_t> bytes;
  Section<double> numbers;
  SectionRows<std::uint32_t> table;
  Section<std::uint64_t> one;
};

TEST(Sections, EachSectionAndEachRowHasCacheLinesOfItsOwn) {
  for (const std::size_t count : {1, 63, 64, 65}) {
    const auto bytes = bytes_of_sections<Part>(count, std::size_t{3});
    EXPECT_EQ(bytes % kSectionAlignment, 0U);
    struct alignas(kSectionAlignment) Line {
      std::byte bytes[kSectionAlignment];
    };
    std::vector<Line> memory(bytes / kSectionAlignment + 1);
    Sections at(memory.front().bytes);
    const Part part(at, count, 3);
    EXPECT_EQ(at.bytes(), bytes);
    EXPECT_EQ(part.bytes.size(), count);
    EXPECT_EQ(part.one.size(), 1U);
    std::vector<std::pair<const void*, std::size_t>> places = {
        {part.bytes.data(), part.bytes.size_bytes()},
        {part.numbers.data(), part.numbers.size_bytes()}};
    for (std::size_t row = 0; row < 3; ++row) places.emplace_back(part.table[row], 4 * count);
    places.emplace_back(part.one.data(), sizeof(std::uint64_t));
    const auto* next = memory.front().bytes;
    for (const auto& [begin, size] : places) {
      EXPECT_EQ(begin, next);
      next += round_up(size, kSectionAlignment);
    }
    EXPECT_EQ(next, memory.front().bytes + bytes);
  }
}

TEST(Sections, ABlockGoesOnWhereItIsAligned) {
  Sections at;
  EXPECT_EQ(at.take(1), nullptr);
  at.align(kPageBytes);
  EXPECT_EQ(at.bytes(), kPageBytes);
  EXPECT_TRUE(Section<double>(at, 3).empty()) << "there is no memory";
  EXPECT_EQ(at.bytes(), kPageBytes + kSectionAlignment);
}

}  // namespace
}  // namespace tutti::test
