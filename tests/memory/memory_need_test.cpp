#include "memory/memory_need.h"

#include <gmock/gmock.h>

#include "memory/stub_system.h"

namespace tutti::test {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(MemoryNeed, FitsUpToTheLastByte) {
  const StubSystem system({{.owner = "machine", .limit = 8 * kGiB, .available = 4 * kGiB},
                           {.owner = "cgroup /a", .limit = 6 * kGiB, .available = 3 * kGiB}});
  EXPECT_EQ(refuse_memory(system, {.bytes_per_worker = kGiB, .workers = 3, .what = "x"}), "");
  EXPECT_NE(refuse_memory(system, {.bytes_per_worker = kGiB + 1, .workers = 3, .what = "x"}), "");
  EXPECT_NE(refuse_memory(system, {.bytes_per_worker = 3 * kGiB + 1, .workers = 1, .what = "x"}),
            "");
}

TEST(MemoryNeed, RefusalHasTheFiguresAndTheTightestBound) {
  const StubSystem system({{.owner = "machine", .limit = 8 * kGiB, .available = 4 * kGiB},
                           {.owner = "cgroup /a/b", .limit = 2 * kGiB, .available = 5 << 20},
                           {.owner = "cgroup /a", .limit = 6 * kGiB, .available = 3 * kGiB}});
  EXPECT_EQ(refuse_memory(system, {.bytes_per_worker = kGiB + kGiB / 4,
                                   .workers = 4,
                                   .what = "gradients of 12 parameters"}),
            "not enough memory: gradients of 12 parameters needs 5 GiB (1.25 GiB for each of 4 "
            "workers), but cgroup /a/b has 5 MiB left of 2 GiB");
  EXPECT_EQ(refuse_memory(system, {.bytes_per_worker = 6 << 20, .workers = 1, .what = {}}),
            "not enough memory: this needs 6 MiB for one worker, but cgroup /a/b has 5 MiB left of "
            "2 GiB");
}

TEST(MemoryNeed, WhatIsPrivateFitsTheLimitsOfOneProcessToo) {
  const StubSystem system({{.owner = "machine", .limit = 8 * kGiB, .available = 4 * kGiB}},
                          {{.owner = "RLIMIT_DATA", .limit = 2 * kGiB, .available = kGiB}});
  EXPECT_EQ(refuse_memory(system,
                          {.bytes_per_worker = kGiB, .workers = 3, .what = {}, .is_private = true}),
            "");
  EXPECT_EQ(refuse_memory(system, {.bytes_per_worker = kGiB + 1, .workers = 3, .what = {}}), "");
  EXPECT_EQ(refuse_memory(system, {.bytes_per_worker = kGiB + kGiB / 4,
                                   .workers = 3,
                                   .what = "a layer",
                                   .is_private = true}),
            "not enough memory: a layer needs 1.25 GiB for one worker, but RLIMIT_DATA has 1 GiB "
            "left of 2 GiB");
}

TEST(MemoryNeed, OverflowIsANeedThatNeverFits) {
  const StubSystem system({{.owner = "machine", .limit = 8 * kGiB, .available = 4 * kGiB}});
  const MemoryNeed need{.bytes_per_worker = ~std::uint64_t{0} / 2, .workers = 3, .what = "x"};
  EXPECT_EQ(need.total(), ~std::uint64_t{0});
  EXPECT_NE(refuse_memory(system, need), "");
}

TEST(MemoryNeed, ASystemThatKnowsNoBoundRefusesNothing) {
  EXPECT_EQ(refuse_memory(StubSystem({}), {.bytes_per_worker = kGiB, .workers = 64, .what = "x"}),
            "");
}

TEST(FormatBytes, IsShortAndExactWhereItCanBe) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(kGiB), "1 GiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16 EiB");
}

}  // namespace
}  // namespace tutti::test
