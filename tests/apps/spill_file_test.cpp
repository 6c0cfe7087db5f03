#include "apps/tutti/text/spill_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <thread>

#include "support/refused_calls.h"

namespace tutti::command {
namespace {

TEST(SpillFile, GivesBackWhatItTookInOrder) {
  SpillFile file;
  EXPECT_TRUE(file.empty());
  EXPECT_FALSE(file.pop());
  std::deque<std::string> expected;
  for (int round = 0; round < 300; ++round) {
    const std::string text(static_cast<std::size_t>(round * 37 % 5000), static_cast<char>(round));
    ASSERT_TRUE(file.push(round, text));
    expected.push_back(text);
    if (round % 3 != 0) continue;
    const auto entry = file.pop();
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->kind, round / 3);
    EXPECT_EQ(entry->text, expected.front());
    expected.pop_front();
  }
  while (const auto entry = file.pop()) {
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(entry->text, expected.front());
    expected.pop_front();
  }
  EXPECT_TRUE(expected.empty());
  EXPECT_TRUE(file.empty());
}

// promise: launcher#output
TEST(SpillFile, TakesNoMoreThanItMay) {
  EXPECT_EQ(SpillFile::kMost, std::size_t{1} << 30);
  SpillFile file(1000);
  EXPECT_TRUE(file.push(1, std::string(900, 'a')));
  errno = 0;
  EXPECT_FALSE(file.push(1, std::string(200, 'b')));
  EXPECT_EQ(errno, EFBIG);
  EXPECT_EQ(file.pop()->text, std::string(900, 'a'));
  EXPECT_TRUE(file.push(1, std::string(200, 'c')));
  EXPECT_EQ(file.pop()->text, std::string(200, 'c'));
}

off_t allocated_bytes_of_unnamed_files() {
  off_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat info {};
    if (read_symlink(entry.path(), ignored).string().ends_with(" (deleted)") &&
        stat(entry.path().c_str(), &info) == 0)
      bytes += info.st_blocks * 512;
  }
  return bytes;
}

constexpr off_t kMiB = off_t{1} << 20;

// A file system that cannot free a part of a file: NFS before 4.2, for one.
// promise: launcher#output
TEST(SpillFile, DoesNotGrowWhereItIsNeverEmptyOnAnyFileSystem) {
  std::thread([] {
    RefusedCalls calls;
    calls.add(SYS_fallocate, EOPNOTSUPP);
    ASSERT_TRUE(calls.install());
    const off_t before = allocated_bytes_of_unnamed_files();
    SpillFile file;
    const std::string text(64'321, 'x');
    ASSERT_TRUE(file.push(1, text));
    off_t most = 0;
    for (int round = 0; round < 2000; ++round) {
      ASSERT_TRUE(file.push(1, text));
      ASSERT_TRUE(file.pop());
      most = std::max(most, allocated_bytes_of_unnamed_files() - before);
    }
    EXPECT_LT(most, 5 * 64'321);  // two texts, as many that have been popped, and edges of blocks
  }).join();
}

TEST(SpillFile, WhatWasPoppedCountsUntilItsFileHasBeenReadToItsEnd) {
  SpillFile file(1000);
  ASSERT_TRUE(file.push(1, std::string(400, 'a')));
  ASSERT_TRUE(file.push(2, std::string(400, 'b')));
  EXPECT_EQ(file.pop()->kind, 1);
  errno = 0;
  EXPECT_FALSE(file.push(3, std::string(200, 'c')));
  EXPECT_EQ(errno, EFBIG);
  EXPECT_EQ(file.pop()->text, std::string(400, 'b'));
  EXPECT_TRUE(file.empty());
  EXPECT_TRUE(file.push(3, std::string(200, 'c')));
  EXPECT_EQ(file.pop()->text, std::string(200, 'c'));
}

// promise: launcher#output
TEST(SpillFile, GivesBackAllWhenItIsEmpty) {
  const off_t before = allocated_bytes_of_unnamed_files();
  SpillFile file;
  ASSERT_TRUE(file.push(1, std::string(kMiB, 'x')));
  EXPECT_GE(allocated_bytes_of_unnamed_files() - before, kMiB);
  ASSERT_TRUE(file.pop());
  EXPECT_EQ(allocated_bytes_of_unnamed_files(), before);
}

// promise: launcher#output
TEST(SpillFile, WhatAFullDiskTookOfATextIsGivenBack) {
  const off_t before = allocated_bytes_of_unnamed_files();
  SpillFile file;
  ASSERT_TRUE(file.push(1, "first"));
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit lower{.rlim_cur = 2 * kMiB, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &lower);
  errno = 0;
  EXPECT_FALSE(file.push(2, std::string(3 * kMiB, 'x')));
  EXPECT_EQ(errno, EFBIG);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_LT(allocated_bytes_of_unnamed_files() - before, kMiB / 4);
  ASSERT_TRUE(file.push(3, "last"));
  EXPECT_EQ(file.pop()->text, "first");
  EXPECT_EQ(file.pop()->kind, 3);
}

}  // namespace
}  // namespace tutti::command
