#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/error.h"

namespace tutti::test {
namespace {

/// How many pages of the block are backed by memory.
std::size_t resident_pages(const Arena& arena) {
  std::vector<unsigned char> pages(arena.bytes() / kPageBytes);
  EXPECT_EQ(::mincore(arena.data(), arena.bytes(), pages.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1U; }));
}

TEST(Arena, IsWholePagesOfZerosSeenThroughEveryDescriptor) {
  const auto system = host_system();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kPageBytes, kPageBytes + 1}) {
    Arena made = Arena::create(*system, "test", bytes);
    EXPECT_EQ(made.bytes(), std::max(round_up(bytes, kPageBytes), kPageBytes));
    EXPECT_EQ(std::count(made.data(), made.data() + made.bytes(), std::byte{0}),
              static_cast<std::ptrdiff_t>(made.bytes()));
    const Arena seen = Arena::open(*system, made.descriptor(), bytes);
    made.data()[made.bytes() - 1] = std::byte{9};
    EXPECT_EQ(seen.data()[made.bytes() - 1], std::byte{9});
    made.close_descriptor();
    seen.data()[0] = std::byte{3};
    EXPECT_EQ(made.data()[0], std::byte{3});
  }
}

TEST(Arena, OfAnotherSizeThanAgreedIsRefused) {
  const auto system = host_system();
  const Arena made = Arena::create(*system, "test", 3 * kPageBytes);
  EXPECT_THROW(Arena::open(*system, made.descriptor(), 2 * kPageBytes), InvalidArgument);
  EXPECT_THROW(Arena::open(*system, made.descriptor(), 4 * kPageBytes), InvalidArgument);
  EXPECT_THROW(Arena::create(*system, "test", std::numeric_limits<std::size_t>::max()),
               OutOfMemory);
}

// promise: group#when-something-is-wrong, clusters#on-one-host
TEST(Arena, CannotBeResizedByAnyone) {
  const auto system = host_system();
  const Arena made = Arena::create(*system, "test", 3 * kPageBytes);
  const FileDescriptor file = made.descriptor();
  EXPECT_NE(::ftruncate(file.get(), 0), 0);
  EXPECT_NE(::ftruncate(file.get(), 1 << 20), 0);
}

// promise: group#when-something-is-wrong, group.h#allocate
TEST(Arena, OnlyTouchedPagesCostMemory) {
  const auto system = host_system();
  const Arena made = Arena::create(*system, "test", 256 * kPageBytes);
  EXPECT_EQ(resident_pages(made), 0U);
  touch_pages(made.data(), 100 * kPageBytes + 1);
  EXPECT_EQ(resident_pages(made), 101U);
  EXPECT_EQ(std::count(made.data(), made.data() + made.bytes(), std::byte{0}),
            static_cast<std::ptrdiff_t>(made.bytes()));
}

}  // namespace
}  // namespace tutti::test
