#include <sys/mman.h>

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/local/region_table.h"
#include "support/process_ranks.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kCount = 50'000;

// promise: group.h#SharedMemory, group.h#data, tensors.h#shared_zeros
TEST(SharedMemory, IsZeroedAlignedAndSeenByAll) {
  run_thread_ranks(3, [](Job job) {
    const Group group(job);
    for (const std::size_t bytes : {0, 1, 4096, 1'000'003}) {
      const SharedMemory memory = group.allocate(bytes);
      EXPECT_EQ(memory.bytes(), bytes);
      EXPECT_EQ(memory.data(), memory.block(group.rank()));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 64, 0u);
      EXPECT_EQ(std::count(memory.data(), memory.data() + bytes, std::byte{0}),
                static_cast<std::ptrdiff_t>(bytes));
      if (bytes == 0) continue;
      group.barrier();
      memory.data()[bytes - 1] = static_cast<std::byte>(group.rank() + 1);
      group.barrier();
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(memory.block(rank)[bytes - 1], static_cast<std::byte>(rank + 1));
      group.barrier();
    }
  });
}

// promise: group.h#SharedMemory, group.h#allocate_common
TEST(SharedMemory, OneBlockForAll) {
  run_thread_ranks(3, [](Job job) {
    const Group group(job);
    constexpr std::int64_t kTotal = 300'001;
    const SharedMemory memory = group.allocate_common(kTotal * sizeof(float), "parameters");
    auto* const values = reinterpret_cast<float*>(memory.data());
    EXPECT_EQ(memory.data(), memory.block(2));
    const auto [begin, end] = share_of(kTotal, group);
    std::fill(values + begin, values + end, static_cast<float>(group.rank() + 1));
    group.barrier();
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto [first, last] = share_of(kTotal, rank, group.size());
      EXPECT_EQ(values[first], static_cast<float>(rank + 1));
      EXPECT_EQ(values[last - 1], static_cast<float>(rank + 1));
    }
    group.barrier();
    // A collective finds the memory, which all give, as it finds a block of each.
    std::vector<float> sum(1000);
    group.all_reduce({values, 1000, DType::float32}, {sum.data(), 1000, DType::float32},
                     Reduction::sum);
    EXPECT_EQ(sum, std::vector<float>(1000, 3.0F));
    group.barrier();
  });
}

// promise: group.h#allocate_common
TEST(SharedMemory, OneBlockForAllIsCountedOnce) {
  ThreadOptions options;
  options.memory_bounds = [] {
    return std::vector<MemoryBound>{{.owner = "machine", .limit = 64 << 20, .available = 40 << 20}};
  };
  run_thread_ranks(
      3,
      [](Job job) {
        const Group group(job);
        EXPECT_EQ(group.allocate_common(30 << 20).bytes(), std::size_t{30} << 20);
        EXPECT_THROW(group.allocate_common(50 << 20), OutOfMemory);
        group.barrier();
      },
      options);
}

/// Blocks of workers elsewhere take no room.
TEST(SharedMemory, IsCountedForTheWorkersOfThisHost) {
  ThreadOptions options;
  options.hosts = even_hosts(5, 2);  // 0 1, 2 3 4
  options.memory_bounds = [] {
    return std::vector<MemoryBound>{{.owner = "machine", .limit = 64 << 20, .available = 40 << 20}};
  };
  run_thread_ranks(
      5,
      [](const Job& job) {
        const Group group(job);
        EXPECT_NO_THROW(group.allocate(12 << 20, "gradients"));
        try {
          group.allocate(16 << 20, "gradients");
          ADD_FAILURE() << "48 MiB of three workers were taken from 40 MiB";
        } catch (const OutOfMemory& e) {
          EXPECT_THAT(e.what(), testing::HasSubstr("48 MiB (16 MiB for each of 3 workers)"));
        }
        EXPECT_THROW(group.allocate_common(50 << 20, "copies"), OutOfMemory);
      },
      options);
}

// promise: error.h#OutOfMemory, group#when-something-is-wrong, group.h#allocate
TEST(SharedMemory, TooMuchIsRefusedOnAllWithTheFigures) {
  ThreadOptions options;
  options.memory_bounds = [] {
    return std::vector<MemoryBound>{
        {.owner = "machine",
         .limit = std::uint64_t{64} << 30,
         .available = std::uint64_t{32} << 30},
        {.owner = "cgroup /jobs/a", .limit = 64 << 20, .available = 40 << 20}};
  };
  run_thread_ranks(
      3,
      [](Job job) {
        const Group group(job);
        try {
          group.allocate(20 << 20, "gradients of 4 parameters");
          ADD_FAILURE() << "60 MiB were taken from 40 MiB";
        } catch (const OutOfMemory& e) {
          EXPECT_STREQ(e.what(),
                       "not enough memory: gradients of 4 parameters needs 60 MiB (20 MiB for each "
                       "of 3 workers), but cgroup /jobs/a has 40 MiB left of 64 MiB");
        }
        const SharedMemory fits = group.allocate(10 << 20);
        // What is not used now is not counted now.
        const SharedMemory sparse = group.allocate(std::size_t{1} << 30, "slots", 1 << 20);
        EXPECT_EQ(sparse.bytes(), std::size_t{1} << 30);
        sparse.data()[sparse.bytes() - 1] = std::byte{1};
        EXPECT_THROW(group.allocate(~std::size_t{0} - 5), OutOfMemory);
        EXPECT_THROW(group.allocate(~std::size_t{0} - 5, "huge", 0), OutOfMemory);
        group.barrier();
      },
      options);
}

TEST(SharedMemory, DifferentRequestsAreAMismatch) {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    try {
      group.allocate(job.rank() == 0 ? 100 : 200, "slots");
      ADD_FAILURE() << "nothing was noticed";
    } catch (const Mismatch& e) {
      EXPECT_THAT(e.what(), HasSubstr("\"allocate 100/100 slots\"; rank 1:"));
      EXPECT_THAT(e.what(), HasSubstr("\"allocate 200/200 slots\""));
    }
  });
}

/// Members let go at different times; whoever still has it may use it, and the sums stay right.
// promise: group#two-ways
TEST(SharedMemory, MembersLetGoWhenTheyLike) {
  run_thread_ranks(3, [](Job job) {
    const Group group(job);
    for (int round = 0; round < 10; ++round) {
      std::optional<SharedMemory> memory = group.allocate(kCount * sizeof(float));
      std::vector<float> own(kCount);
      float* x = reinterpret_cast<float*>(memory->data());
      if (round % 3 == group.rank()) {
        memory.reset();
        x = own.data();
      }
      for (int call = 0; call < 3; ++call) {
        std::fill_n(x, kCount, static_cast<float>(group.rank() + call));
        group.all_reduce(view(x, kCount), Reduction::sum);
        ASSERT_EQ(x[0], 3.0f + 3.0f * static_cast<float>(call));
        ASSERT_EQ(std::count(x, x + kCount, x[0]), kCount);
      }
    }
  });
}

/// Bytes of a block that are in memory.
std::size_t resident(const std::byte* data, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(data), bytes, pages.data()), 0);
  return 4096 * static_cast<std::size_t>(
                    std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

// promise: group#when-something-is-wrong, group.h#allocate_common
TEST(SharedMemory, IsBackedAtOnceAsFarAsItIsNeeded) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr std::size_t kNeeded = 8 << 20;
  constexpr std::size_t kHugePage = 2 << 20;
  const ProcessOutcome outcome = run_process_ranks(2, [&](Job job) {
    const Group group(job);
    const SharedMemory memory = group.allocate(kBytes, "slots", kNeeded);
    EXPECT_GE(resident(memory.data(), kBytes), kNeeded);
    EXPECT_LE(resident(memory.data(), kBytes), kNeeded + kHugePage);
    const SharedMemory common = group.allocate_common(kBytes, "parameters");
    EXPECT_EQ(resident(common.data(), kBytes), 0U);
    group.barrier();
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

/// Mappings of this process whose file has this name.
std::ptrdiff_t mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != line.npos ? 1 : 0;
  return count;
}

// promise: group.h#SharedMemory
TEST(SharedMemory, IsFreedWhenTheLastMemberLetsGo) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    const Group group(job);
    for (const bool common : {false, true}) {
      std::optional<SharedMemory> memory =
          common ? group.allocate_common(1 << 20, "freed") : group.allocate(1 << 20, "freed");
      float* const x = reinterpret_cast<float*>(memory->data());
      group.all_reduce({x, 100'000, DType::float32}, Reduction::sum);
      group.barrier();
      EXPECT_GE(mappings_of("freed"), 1);
      // The mappings of a member go with it; the pages with the last one's.
      memory.reset();
      EXPECT_EQ(mappings_of("freed"), 0);
      group.barrier();
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(SharedMemory, OutlivesItsGroup) {
  run_thread_ranks(2, [](Job job) {
    std::optional<SharedMemory> memory;
    {
      const Group group(job);
      memory = group.allocate(100);
      memory->data()[0] = static_cast<std::byte>(job.rank() + 5);
      group.barrier();
    }
    EXPECT_EQ(memory->block(0)[0], std::byte{5});
    EXPECT_EQ(memory->block(1)[0], std::byte{6});
  });
}

// promise: group#two-ways
TEST(SharedMemory, MoreBlocksThanTheTableHasNumbersForWorkToo) {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    std::vector<SharedMemory> all;
    for (int i = 0; i < kMaxRegions + 3; ++i) all.push_back(group.allocate(kCount * sizeof(float)));
    for (const SharedMemory& memory : {all.front(), all.back()}) {
      auto* const x = reinterpret_cast<float*>(memory.data());
      std::fill_n(x, kCount, 1.0f + static_cast<float>(group.rank()));
      group.all_reduce(view(x, kCount), Reduction::sum);
      EXPECT_EQ(std::count(x, x + kCount, 3.0f), kCount);
    }
  });
}

// promise: group#two-ways
TEST(RegionTable, KnowsWhatLiesInsideABlock) {
  auto owner = std::make_shared<std::vector<std::byte>>(1000);
  std::byte* const begin = owner->data();
  RegionTable table;
  EXPECT_EQ(RegionTable::free_number(0b1011), 2);
  EXPECT_EQ(RegionTable::free_number(~std::uint64_t{0}), -1);
  table.add(2, {begin, begin + 500}, 500, owner);
  EXPECT_EQ(table.locate(0, begin + 10, 490).offset, 10u);
  EXPECT_EQ(table.locate(1, begin + 510, 20).region, 2u);
  EXPECT_EQ(table.address(1, table.locate(1, begin + 510, 20)), begin + 510);
  EXPECT_EQ(table.locate(0, begin + 10, 491).region, Location::kPrivate);
  EXPECT_EQ(table.locate(0, begin + 510, 20).region, Location::kPrivate);
  EXPECT_EQ(table.locate(1, begin + 490, 20).region, Location::kPrivate);
  std::vector<std::shared_ptr<void>> pins;
  EXPECT_EQ(table.hold(pins), 0b100u);
  owner.reset();
  EXPECT_EQ(table.locate(0, begin, 1).region, 2u);  // still pinned
  pins.clear();
  EXPECT_EQ(table.hold(pins), 0u);
  EXPECT_EQ(table.locate(0, begin, 1).region, Location::kPrivate);
}

}  // namespace
}  // namespace tutti::test
