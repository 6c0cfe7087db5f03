// A disk that is really full: a file system of 1 MiB, seen by a child of this test alone.

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>

#include "run/files/samples.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kNoMount = 77;

/// Empty if it worked. What is mounted ends with this process.
std::string mount_small_disk(const std::string& at) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    return std::string("unshare: ") + std::strerror(errno);
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return std::string("mount of / as private: ") + std::strerror(errno);
  if (::mount("tutti-test", at.c_str(), "tmpfs", 0, "size=1m") != 0)
    return std::string("mount of a tmpfs: ") + std::strerror(errno);
  return "";
}

void save_until_full(const std::string& dir) {
  CheckpointStore store(host_files(), dir);
  Samples samples(1);
  CheckpointContent content{
      .step = 100,
      .files = {{.name = "x", .tensors = {samples.tensor("t", StoredType::U8, {400'000})}}}};
  store.save(content);
  const auto first = bytes_of(content);
  content.step = 200;
  content.files[0].tensors = {samples.tensor("t", StoredType::U8, {900'000})};
  const std::string text = text_of<IoError>([&] { store.save(content); });
  EXPECT_THAT(text, HasSubstr("the checkpoint of step 200 (878.98 KiB) cannot be saved: cannot"));
  EXPECT_THAT(text, HasSubstr("/x: No space left on device"));
  EXPECT_THAT(host_files()->names_in(dir), UnorderedElementsAre(".lock", ".run", "step-00000100"));
  EXPECT_EQ(bytes_of(store.open(100)), first);
  content.step = 300;
  content.files[0].tensors = {samples.tensor("t", StoredType::U8, {500'000})};
  store.save(content);  // the room is free again
  EXPECT_EQ(store.open(300).manifest().step, 300);
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(FullDisk, EarlierCheckpointsStayAndTheRoomIsGivenBack) {
  const TemporaryFolder folder;
  const std::string reason = folder.file("reason"), disk = folder.file("disk");
  host_files()->create_folder(disk);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string problem = mount_small_disk(disk);
    std::ofstream(reason) << problem;
    if (!problem.empty()) ::_exit(kNoMount);
    try {
      save_until_full(disk + "/d");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount)
    GTEST_SKIP() << "no small disk could be mounted: " << read_file(reason);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::test
