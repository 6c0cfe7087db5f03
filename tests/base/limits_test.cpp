#include "base/limits.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// A made-up machine in a folder of its own.
class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tutti_limits_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:   9000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::string in_root(const std::string& path) const { return (root_ / path).string(); }

  fs::path root_;
};

constexpr std::uint64_t kMachine = std::uint64_t{16000} * 1024;
const char* const kV2Mount =
    "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
const char* const kV1Mounts =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

TEST_F(Limits, machine_alone) {
  const auto bounds = read_memory_bounds(root_);
  ASSERT_EQ(bounds.size(), 1U);
  EXPECT_EQ(bounds[0].owner, "machine");
  EXPECT_EQ(bounds[0].limit, kMachine);
  EXPECT_EQ(bounds[0].available, 9000U * 1024);
  EXPECT_FALSE(read_processor_quota(root_));
}

// promise: group#when-something-is-wrong
TEST_F(Limits, v2_bounds_of_all_ancestors_with_cached_files_available) {
  write("proc/self/mountinfo", kV2Mount);
  write("proc/self/cgroup", "0::/user.slice/job\n");
  write("sys/fs/cgroup/user.slice/job/memory.max", "5000000\n");
  write("sys/fs/cgroup/user.slice/job/memory.high", "1000\n");
  write("sys/fs/cgroup/user.slice/job/memory.current", "3000000\n");
  write("sys/fs/cgroup/user.slice/job/memory.stat",
        "anon 5\nfile 9\ninactive_anon 77\ninactive_file 1000000\nslab 1\n");
  write("sys/fs/cgroup/user.slice/memory.max", "2000000\n");
  write("sys/fs/cgroup/user.slice/memory.current", "3000000\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  const auto bounds = read_memory_bounds(root_);
  ASSERT_EQ(bounds.size(), 3U);
  EXPECT_EQ(bounds[1].owner, in_root("sys/fs/cgroup/user.slice/job"));
  EXPECT_EQ(bounds[1].limit, 5000000U);
  EXPECT_EQ(bounds[1].available, 3000000U);
  EXPECT_EQ(bounds[2].owner, in_root("sys/fs/cgroup/user.slice"));
  EXPECT_EQ(bounds[2].available, 0U) << "over its limit already";
}

TEST_F(Limits, v1_bounds_of_all_ancestors) {
  write("proc/self/mountinfo", kV1Mounts);
  write("proc/self/cgroup", "5:devices:/a\n4:memory:/a/b\n1:cpu,cpuacct:/a\n0::/\n");
  write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8000000\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "7000000\n");
  write("sys/fs/cgroup/memory/a/memory.stat",
        "inactive_file 1\ntotal_cache 3\ntotal_inactive_file 500000\n");
  const auto bounds = read_memory_bounds(root_);
  ASSERT_EQ(bounds.size(), 2U) << "what is unlimited sets no bound";
  EXPECT_EQ(bounds[1].owner, in_root("sys/fs/cgroup/memory/a"));
  EXPECT_EQ(bounds[1].limit, 8000000U);
  EXPECT_EQ(bounds[1].available, 1500000U);
}

TEST_F(Limits, both_generations_at_once) {
  write("proc/self/mountinfo",
        std::string(kV1Mounts) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "4:memory:/a\n0::/b\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
  write("sys/fs/cgroup/unified/b/memory.max", "2000");
  const auto bounds = read_memory_bounds(root_);
  ASSERT_EQ(bounds.size(), 3U);
  EXPECT_EQ(bounds[1].limit, 1000U);
  EXPECT_EQ(bounds[2].limit, 2000U);
}

TEST_F(Limits, container_that_mounts_its_own_part_of_the_hierarchy) {
  write("proc/self/mountinfo",
        "35 31 0:32 /docker/c1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("proc/self/cgroup", "4:memory:/docker/c1/inner\n");
  write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "3000");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000");
  auto bounds = read_memory_bounds(root_);
  ASSERT_EQ(bounds.size(), 3U);
  EXPECT_EQ(bounds[1].limit, 3000U);
  EXPECT_EQ(bounds[2].limit, 4000U);
  // A group outside what is mounted, also one whose name merely begins alike.
  for (const char* path : {"/elsewhere", "/docker/c12", "/../up"}) {
    write("proc/self/cgroup", std::string("4:memory:") + path + "\n");
    bounds = read_memory_bounds(root_);
    ASSERT_EQ(bounds.size(), 2U) << path;
    EXPECT_EQ(bounds[1].limit, 4000U);
  }
}

TEST_F(Limits, mount_points_with_blanks) {
  write("proc/self/mountinfo", "30 23 0:26 / /mnt/c\\040groups rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "0::/\n");
  write("mnt/c groups/memory.max", "777");
  ASSERT_EQ(read_memory_bounds(root_).size(), 2U);
  EXPECT_EQ(read_memory_bounds(root_)[1].limit, 777U);
}

TEST_F(Limits, processor_quota_v2_is_the_smallest_rounded_up) {
  write("proc/self/mountinfo", kV2Mount);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(read_processor_quota(root_));
  write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(read_processor_quota(root_), 3);
  write("sys/fs/cgroup/a/b/cpu.max", "10000 100000\n");
  EXPECT_EQ(read_processor_quota(root_), 1);
}

TEST_F(Limits, processor_quota_v1) {
  write("proc/self/mountinfo", kV1Mounts);
  write("proc/self/cgroup", "1:cpu,cpuacct:/a\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(read_processor_quota(root_));
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(read_processor_quota(root_), 4);
}

TEST_F(Limits, damaged_files_set_no_limit) {
  write("proc/self/mountinfo", "garbage\n\n30 23 - cgroup2\n1 2 3 4 5 6 - cgroup2\n");
  write("proc/self/cgroup", "nonsense\n::\n");
  EXPECT_EQ(read_memory_bounds(root_).size(), 1U);
  write("proc/self/mountinfo", kV2Mount);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "12x\n");
  write("sys/fs/cgroup/cpu.max", "0 0\n");
  EXPECT_EQ(read_memory_bounds(root_).size(), 1U);
  EXPECT_FALSE(read_processor_quota(root_));
}

}  // namespace
}  // namespace tutti
