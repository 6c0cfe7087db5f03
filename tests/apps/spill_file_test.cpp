#include "spill_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <cerrno>
#include <deque>
#include <filesystem>

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

TEST(SpillFile, DoesNotGrowWhereItIsNeverEmpty) {
  const off_t before = allocated_bytes_of_unnamed_files();
  SpillFile file;
  const std::string text(std::size_t{64} << 10, 'x');
  ASSERT_TRUE(file.push(1, text));
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(file.push(1, text));
    ASSERT_TRUE(file.pop());
  }
  EXPECT_LT(allocated_bytes_of_unnamed_files() - before, off_t{4} << 20);
}

}  // namespace
}  // namespace tutti::command
