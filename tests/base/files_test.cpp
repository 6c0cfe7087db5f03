#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "support/running_command.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class HostFiles : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::shared_ptr<Files> files_ = host_files();
};

TEST_F(HostFiles, WriteReadRenameRemove) {
  const std::string path = folder_.file("a");
  {
    const File file = files_->create(path);
    write_all(*files_, file, bytes_of("hello "));
    write_all(*files_, file, bytes_of("world"));
    write_all(*files_, file, {});
    files_->sync(file);
    EXPECT_EQ(::fcntl(file.descriptor.get(), F_GETFD), FD_CLOEXEC);
  }
  const File file = files_->open(path);
  EXPECT_EQ(files_->size(file), 11U);
  std::string text(5, '\0');
  read_all(*files_, file, 6, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "world");
  EXPECT_THAT([&] { read_all(*files_, file, 7, std::as_writable_bytes(std::span(text))); },
              ThrowsMessage<Corrupt>(path + " ends at byte 11, where 1 more were expected"));
  files_->rename(path, folder_.file("b"));
  EXPECT_FALSE(files_->exists(path));
  EXPECT_THAT(files_->names_in(folder_.file("")), UnorderedElementsAre("b"));
  files_->remove_all(folder_.file("b"));
  EXPECT_THAT(files_->names_in(folder_.file("")), IsEmpty());
  files_->remove_all(folder_.file("b"));  // gone is gone
}

TEST_F(HostFiles, AppendedFilesKeepWhatTheyHaveAndMayBeCut) {
  const std::string path = folder_.file("a");
  write_all(*files_, files_->append(path), bytes_of("hello "));
  const File file = files_->append(path);
  write_all(*files_, file, bytes_of("world"));
  EXPECT_EQ(::fcntl(file.descriptor.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(read_file(path), "hello world");
  files_->cut(file, 4);
  write_all(*files_, file, bytes_of("!"));
  EXPECT_EQ(read_file(path), "hell!");
  std::string text(2, '\0');
  read_all(*files_, file, 3, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "l!");
  EXPECT_THAT([&] { files_->cut(files_->open(path), 0); },
              ThrowsMessage<IoError>("cannot cut " + path + ": Invalid argument"));
  EXPECT_THAT([&] { files_->append(folder_.file("")); },
              ThrowsMessage<IoError>("cannot open " + folder_.file("") + ": Is a directory"));
}

TEST_F(HostFiles, FoldersAreMadeAndRemovedWithAllInThem) {
  ensure_folder(*files_, folder_.file("x/y/z"));
  ensure_folder(*files_, folder_.file("x/y/z"));
  files_->create(folder_.file("x/y/z/file"));
  files_->create(folder_.file("outside"));
  ASSERT_EQ(::symlink(folder_.file("outside").c_str(), folder_.file("x/link").c_str()), 0);
  files_->sync_folder(folder_.file("x/y"));
  EXPECT_THAT(files_->names_in(folder_.file("x")), UnorderedElementsAre("y", "link"));
  files_->remove_all(folder_.file("x"));
  EXPECT_FALSE(files_->exists(folder_.file("x")));
  EXPECT_TRUE(files_->exists(folder_.file("outside"))) << "links are not followed";
  EXPECT_THAT(files_->names_in(folder_.file("x")), IsEmpty());
}

// promise: error.h#IoError, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST_F(HostFiles, ErrorsNameWhatWasTriedThePathAndTheReason) {
  const std::string a = folder_.file("a"), none = folder_.file("none");
  files_->create(a);
  EXPECT_THAT([&] { files_->create(a); },
              ThrowsMessage<IoError>("cannot create " + a + ": File exists"));
  EXPECT_THAT([&] { files_->open(none); },
              ThrowsMessage<IoError>("cannot open " + none + ": No such file or directory"));
  EXPECT_THAT([&] { files_->open(folder_.file("")); },
              ThrowsMessage<IoError>(HasSubstr("not a regular file")));
  EXPECT_THAT([&] { files_->names_in(a); },
              ThrowsMessage<IoError>("cannot list " + a + ": Not a directory"));
  EXPECT_THAT([&] { files_->create_folder(a); },
              ThrowsMessage<IoError>("cannot make folder " + a + ": File exists"));
  EXPECT_THAT([&] { files_->sync_folder(none); },
              ThrowsMessage<IoError>(HasSubstr("cannot open folder " + none)));
  EXPECT_THAT(
      [&] { files_->rename(none, a); },
      ThrowsMessage<IoError>("cannot rename " + none + " to " + a + ": No such file or directory"));
  const File full{"/dev/full", FileDescriptor(::open("/dev/full", O_WRONLY | O_CLOEXEC))};
  EXPECT_THAT([&] { files_->write_some(full, bytes_of("x")); },
              ThrowsMessage<IoError>("cannot write /dev/full: No space left on device"));
}

// Opening a pipe that nobody writes to would never return.
TEST_F(HostFiles, PipesAreRefusedAtOnce) {
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT([&] { files_->open(pipe); },
              ThrowsMessage<IoError>("cannot open " + pipe + ": not a regular file"));
}

TEST_F(HostFiles, ALockIsFreeAgainWhenItsHolderClosesItOrDies) {
  const std::string path = folder_.file("lock");
  {
    const auto mine = files_->lock(path);
    ASSERT_TRUE(mine);
    EXPECT_FALSE(files_->lock(path));
    EXPECT_TRUE(files_->lock(folder_.file("another")));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = files_->lock(path);
    ::_exit(held ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files_->lock(path));
}

TEST_F(HostFiles, SeveralMayMakeTheSameFoldersAtOnce) {
  std::atomic<int> failed = 0;
  for (int round = 0; round < 100; ++round) {
    const auto deep = folder_.file(std::to_string(round) + "/a/b/c");
    std::barrier start(4);
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t) {
      all.emplace_back([&] {
        start.arrive_and_wait();
        try {
          ensure_folder(*files_, deep);
        } catch (const IoError&) {
          ++failed;
        }
      });
    }
    for (auto& thread : all) thread.join();
    EXPECT_TRUE(files_->exists(deep));
  }
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace tutti
