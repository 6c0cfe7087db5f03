// More bytes than 2^31.

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "comm/collective_cases.h"

namespace tutti::test {
namespace {

constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 4099;

/// Why this test cannot run here; empty if it can.
std::string hindrance(std::uint64_t bytes) {
#ifdef TUTTI_SANITIZED
  return "a sanitizer needs a multiple of the memory";
#endif
  for (const MemoryBound& bound : host_system()->memory_bounds()) {
    if (bound.available < bytes + (std::uint64_t{1} << 30))
      return bound.owner + " has too little memory left";
  }
  return {};
}

void broadcast_private_memory() {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    // The root's pages are hardly written: they cost next to nothing.
    void* const memory = ::mmap(nullptr, kCount, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    ::madvise(memory, kCount, MADV_HUGEPAGE);
    auto* const bytes = static_cast<std::uint8_t*>(memory);
    if (group.rank() == 1) bytes[0] = bytes[kCount / 2] = bytes[kCount - 1] = 77;
    group.broadcast(view(bytes, kCount), 1);
    EXPECT_EQ(bytes[0], 77);
    EXPECT_EQ(bytes[kCount / 2], 77);
    EXPECT_EQ(bytes[kCount - 1], 77);
    EXPECT_EQ(bytes[kCount - 2], 0);
    ::munmap(memory, kCount);
  });
}

void all_reduce_shared_memory() {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    const SharedMemory memory = group.allocate(kCount, "huge", 0);
    auto* const bytes = reinterpret_cast<std::uint8_t*>(memory.data());
    const auto mine = static_cast<std::uint8_t>(group.rank() + 3);
    for (const std::int64_t i : {std::int64_t{0}, kCount / 2, kCount - 1}) bytes[i] = mine;
    group.all_reduce(view(bytes, kCount), Reduction::sum);
    for (const std::int64_t i : {std::int64_t{0}, kCount / 2, kCount - 1}) EXPECT_EQ(bytes[i], 7);
    EXPECT_EQ(bytes[kCount - 2], 0);
  });
}

/// One test, because two that run at once would each count on the same free memory.
// promise: group#two-ways
TEST(Huge, BroadcastOfPrivateAndAllReduceInSharedMemory) {
  if (const auto why = hindrance(kCount); !why.empty()) GTEST_SKIP() << why;
  broadcast_private_memory();
  if (const auto why = hindrance(2 * kCount); !why.empty()) GTEST_SKIP() << "all-reduce: " << why;
  all_reduce_shared_memory();
}

}  // namespace
}  // namespace tutti::test
