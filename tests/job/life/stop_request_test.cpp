// The request to end, where the program has closed its descriptor.

#include "job/life/stop_request.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

TEST(StopRequest, WakesAPoll) {
  StopRequest stop("cannot test");
  pollfd polled{stop.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  EXPECT_FALSE(stop.raised());
  stop.raise();
  EXPECT_EQ(::poll(&polled, 1, 0), 1);
  EXPECT_TRUE(stop.raised());
}

// findings-3: C3
TEST(StopRequest, WritesNothingIntoAFileThatHasItsNumberByNow) {
  StopRequest stop("cannot test");
  EXPECT_TRUE(stop.is_open());
  const FileDescriptor file(::memfd_create("of the program", 0));
  ASSERT_EQ(::dup2(file.get(), stop.descriptor()), stop.descriptor());
  EXPECT_FALSE(stop.is_open());
  stop.raise();
  EXPECT_TRUE(stop.raised());
  struct stat status {};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_size, 0);
}

}  // namespace
}  // namespace tutti::test
