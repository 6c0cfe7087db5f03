#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "base/system.h"
#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using test::text_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HostSystem, memory_is_zero_private_to_the_owner_and_of_fixed_size) {
  const auto system = host_system();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    const FileDescriptor file = system->create_memory("test", bytes);
    struct stat status {};
    ASSERT_EQ(::fstat(file.get(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(bytes));
    EXPECT_EQ(status.st_mode & 0777, 0600U);
    EXPECT_EQ(status.st_blocks, 0) << "no page was touched";
    EXPECT_EQ(::fcntl(file.get(), F_GETFD), FD_CLOEXEC);
    for (const std::size_t other : {bytes - 1, bytes + 1, std::size_t{0}})
      EXPECT_NE(::ftruncate(file.get(), static_cast<off_t>(other)), 0);
    EXPECT_NE(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "no seal can be added";
    const auto memory = system->map(file, bytes);
    EXPECT_EQ(memory.get()[0], std::byte{0});
    EXPECT_EQ(memory.get()[bytes - 1], std::byte{0});
  }
}

TEST(HostSystem, two_maps_show_one_memory_beyond_the_descriptor) {
  const auto system = host_system();
  FileDescriptor file = system->create_memory("test", 100);
  FileDescriptor copy = file.duplicate();
  const auto first = system->map(file, 100);
  file.reset();
  const auto second = system->map(copy, 100);
  copy.reset();
  ASSERT_NE(first.get(), second.get());
  first.get()[99] = std::byte{7};
  EXPECT_EQ(second.get()[99], std::byte{7});
}

// At multiples of 256 MiB apart, blocks that are folded together ran at a fifth of the speed.
// promise: group#when-something-is-wrong
TEST(HostSystem, large_blocks_do_not_lie_alike) {
  const auto system = host_system();
  const std::size_t bytes = std::size_t{256} << 20;  // address space: no page is touched
  std::vector<std::shared_ptr<std::byte>> blocks;
  std::set<std::uintptr_t> places;
  for (int i = 0; i < 8; ++i) {
    const auto file = system->create_memory("test", bytes);
    blocks.push_back(system->map(file, bytes));
    const auto address = reinterpret_cast<std::uintptr_t>(blocks.back().get());
    EXPECT_EQ(address % (std::size_t{2} << 20), 0U) << "huge pages need it";
    places.insert(address % bytes);
    blocks.back().get()[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(places.size(), 8U);
}

TEST(HostSystem, files_that_could_end_a_reader_are_refused) {
  const auto system = host_system();
  const FileDescriptor file = system->create_memory("test", 4096);
  EXPECT_EQ(text_of<InvalidArgument>([&] { system->map(file, 8192); }),
            "shared memory of 8192 bytes has to be mapped, but the file has 4096");
  const FileDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_THAT(text_of<InvalidArgument>([&] { system->map(unsealed, 4096); }),
              HasSubstr("not sealed"));
  EXPECT_THROW(system->map(FileDescriptor(), 4096), IoError);
  EXPECT_THROW(system->create_memory("test", 0), InvalidArgument);
  EXPECT_THAT(text_of<OutOfMemory>([&] { system->create_memory("huge", SIZE_MAX); }),
              AllOf(HasSubstr("\"huge\""), HasSubstr("File too large")));
  EXPECT_NO_THROW(system->create_memory(std::string(1000, 'n'), 1)) << "a long name is cut";
}

TEST(HostSystem, life_line_turns_readable_when_the_process_ends) {
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const pid_t watched = ::fork();
  if (watched == 0) {
    const FileDescriptor life = host_system()->life_line();
    int gate[2];
    if (::pipe(gate) != 0 || ::fcntl(life.get(), F_GETFD) != FD_CLOEXEC) ::_exit(1);
    if (::fork() == 0) {
      pollfd polled{life.get(), POLLIN, 0};
      const char* text = ::poll(&polled, 1, 0) == 0 ? "alive " : "wrong ";
      static_cast<void>(!::write(said[1], text, 6));
      static_cast<void>(!::write(gate[1], "x", 1));
      if (::poll(&polled, 1, 30'000) == 1) static_cast<void>(!::write(said[1], "ended", 5));
      ::_exit(0);
    }
    char byte;
    static_cast<void>(!::read(gate[0], &byte, 1));
    ::_exit(0);
  }
  ::close(said[1]);
  std::string text;
  char buffer[32];
  for (ssize_t n = 0; (n = ::read(said[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  ::close(said[0]);
  ::waitpid(watched, nullptr, 0);
  EXPECT_EQ(text, "alive ended");
}

TEST(HostSystem, tells_what_the_machine_allows) {
  const auto system = host_system();
  const auto bounds = system->memory_bounds();
  ASSERT_FALSE(bounds.empty());
  EXPECT_EQ(bounds[0].owner, "machine");
  EXPECT_GT(bounds[0].limit, bounds[0].available);
  EXPECT_GT(bounds[0].available, 0U);
  EXPECT_GE(system->processors(), 1);
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &before) && CPU_COUNT(&one) == 0) CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(system->processors(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(FileDescriptor, closes_once) {
  int fd = -1;
  {
    FileDescriptor file(::open("/dev/null", O_RDONLY));
    fd = file.get();
    FileDescriptor moved = std::move(file);
    EXPECT_FALSE(file);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(moved.get(), fd);
    EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  }
  EXPECT_LT(::fcntl(fd, F_GETFD), 0);
  EXPECT_THROW(FileDescriptor().duplicate(), Error);
}

}  // namespace
}  // namespace tutti
