#include "base/log.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/check.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Log, lines_say_who_speaks_and_how_serious_it_is) {
  set_log_rank(2, 4);
  CaptureStderr();
  log().info("short");
  log().warn("rank {} is late", 1);
  log().error("over");
  log().debug("unseen");
  EXPECT_EQ(GetCapturedStderr(),
            "tutti [rank 2]: short\ntutti [rank 2] warning: rank 1 is late\ntutti [rank 2] error: "
            "over\n");
  set_log_rank(0, 1);
  CaptureStderr();
  log().info("alone");
  EXPECT_EQ(GetCapturedStderr(), "tutti: alone\n");
}

TEST(Log, level_says_what_is_heard) {
  const auto heard = [](const char* level) {
    set_log_level(level);
    CaptureStderr();
    log().debug("d");
    log().info("i");
    log().warn("w");
    log().error("e");
    const std::string text = GetCapturedStderr();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(heard("debug"), 4);
  EXPECT_EQ(heard("warn"), 2);
  EXPECT_EQ(heard("error"), 1);
  EXPECT_EQ(heard("off"), 0);
  EXPECT_EQ(heard("info"), 3);
  EXPECT_THROW(set_log_level("loud"), InvalidArgument);
}

// promise: error.h#Error, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(Check, says_where_and_what) {
  const int ranks = 3;
  TUTTI_CHECK(ranks == 3, "never said");
  try {
    TUTTI_CHECK(ranks == 4, "{} ranks", ranks);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("log_test.cpp:"));
    EXPECT_THAT(error.what(), HasSubstr("3 ranks (ranks == 4)"));
  }
}

}  // namespace
}  // namespace tutti
