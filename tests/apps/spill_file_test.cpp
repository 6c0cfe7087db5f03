#include "spill_file.h"

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
  EXPECT_EQ(SpillFile::kMost, off_t{1} << 30);
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

// promise: launcher#output
TEST(SpillFile, DoesNotGrowWhereItIsNeverEmpty) {
  const off_t before = allocated_bytes_of_unnamed_files();
  SpillFile file;
  const std::string text(64'321, 'x');
  ASSERT_TRUE(file.push(1, text));
  off_t most = 0;
  for (int round = 0; round < 2000; ++round) {
    ASSERT_TRUE(file.push(1, text));
    ASSERT_TRUE(file.pop());
    if (round >= 1950) most = std::max(most, allocated_bytes_of_unnamed_files() - before);
  }
  // Two texts, up to 1 MiB that has been popped, and the edges of blocks.
  EXPECT_LT(most, kMiB + kMiB / 4);
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

// A file system that cannot punch holes: NFS before 4.2, for one.
// promise: launcher#output
TEST(SpillFile, WherePartsCannotBeGivenBackItStopsAtItsMostUntilItIsEmpty) {
  std::thread([] {
    RefusedCalls calls;
    calls.add(SYS_fallocate, EOPNOTSUPP);
    ASSERT_TRUE(calls.install());
    const off_t before = allocated_bytes_of_unnamed_files();
    SpillFile file(4 * kMiB);
    const std::string text(50'000, 'x');
    ASSERT_TRUE(file.push(1, text));
    int rounds = 0;
    while (rounds < 1000 && file.push(1, text)) {
      ASSERT_TRUE(file.pop());
      ++rounds;
    }
    EXPECT_EQ(errno, EFBIG);
    EXPECT_EQ(rounds, 4 * kMiB / 50'016 - 1);  // an entry has 16 bytes besides
    EXPECT_LE(allocated_bytes_of_unnamed_files() - before, 4 * kMiB + kMiB / 4);
    EXPECT_EQ(file.pop()->text, text);
    ASSERT_TRUE(file.empty());
    EXPECT_TRUE(file.push(1, text));
  }).join();
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
