// Lines that a program prints without flushing, into the launcher's pipe.

#include <gmock/gmock.h>
#include <csignal>

#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// promise: launcher#output
TEST(RunLines, AppearAsTheyArePrintedAndAreNotLostAtTheEnd) {
  for (const std::string how : {"printf", "cout"}) {
    RunningCommand command({"run", "-n", "2", TUTTI_PRINTING_WORKER, how});
    EXPECT_TRUE(command.wait_for("loss 0.5", 2)) << how << command.out;
    command.signal(SIGTERM);
    EXPECT_EQ(command.finish(), 128 + SIGTERM);
  }
}

TEST(RunLines, PrintedBeforeTheWorkerJoinedAppearWhenItJoins) {
  RunningCommand command({"run", "-n", "1", TUTTI_PRINTING_WORKER, "before"});
  EXPECT_TRUE(command.wait_for("[0] loss 0.5"));
  EXPECT_THAT(command.out, HasSubstr("[0] printed before\n[0] loss 0.5\n"));
}

// promise: launcher#output
TEST(RunLines, AProgramThatDecidesForItselfHasToFlush) {
  for (const std::string how : {"buffer", "unsynchronised", "stranger"}) {
    RunningCommand command({"run", "-n", "1", TUTTI_PRINTING_WORKER, how});
    ASSERT_TRUE(command.wait_for("has printed"));
    command.signal(SIGTERM);
    EXPECT_EQ(command.finish(), 128 + SIGTERM);
    EXPECT_THAT(command.out, Not(HasSubstr("loss"))) << how;
  }
}

}  // namespace
}  // namespace tutti
