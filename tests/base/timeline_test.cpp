// Timelines that cannot be written, which is said once.

#include "base/timeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <thread>

#include "support/log_capture.h"
#include "support/refused_calls.h"
#include "support/running_command.h"

namespace tutti {
namespace {

TEST(TimelineFile, WhereTheDiskIsFullThatIsSaidOnce) {
  const test::LogCapture log;
  {
    Timeline timeline("/dev/full", 0, 1);
    for (int event = 0; event < 5000; ++event) timeline.add("an event of some length", {}, {});
  }
  EXPECT_EQ(log.count("error: cannot write the timeline /dev/full"), 1);
}

TEST(TimelineFile, WhatOnlyItsEndShowsToBeLostIsSaid) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const test::LogCapture log;
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);  // the number of the timeline's file
  ASSERT_EQ(close(next), 0);
  std::optional<Timeline> timeline(std::in_place, file, 0, 1);
  std::thread([&] {
    RefusedCalls calls;
    calls.add(SYS_close, next, EDQUOT);
    EXPECT_TRUE(calls.install());
    timeline.reset();
  }).join();
  EXPECT_EQ(close(next), 0);
  EXPECT_EQ(log.count("error: cannot write the timeline " + file), 1);
}

// A worker that ends without destructors (job/end_request.h).
TEST(TimelineFile, IsCompleteOnceFinished) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  Timeline timeline(file, 0, 1);
  timeline.add("before", {}, {});
  timeline.finish();
  const auto text = read_file(file);
  EXPECT_NE(text.find("before"), std::string::npos);
  EXPECT_TRUE(text.ends_with("]}")) << text;
  timeline.add("after", {}, {});
  timeline.finish();
  EXPECT_EQ(read_file(file), text);
}

}  // namespace
}  // namespace tutti
