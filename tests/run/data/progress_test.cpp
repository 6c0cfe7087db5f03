#include "tutti/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What `steps` after `done` print to a file, which is no terminal.
std::string shown(std::int64_t done, std::int64_t total, bool quiet, std::int64_t lines) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  Progress progress(done, total, {.quiet = quiet, .to = file.get(), .lines = lines});
  for (auto step = done + 1; step <= total; ++step) progress.show(step, "loss 1.5");
  std::string text(static_cast<std::size_t>(std::ftell(file.get())), ' ');
  std::rewind(file.get());
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file.get()), text.size());
  return text;
}

// promise: progress.h#Progress
TEST(Progress, PrintsAFewPlainLinesAndTheLastStep) {
  const auto text = shown(0, 103, false, 5);
  EXPECT_THAT(text, StartsWith("step 21/103  loss 1.5  "));
  EXPECT_THAT(text, HasSubstr("step 103/103  loss 1.5  "));
  EXPECT_THAT(text, HasSubstr(" 0 s left\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

// promise: progress.h#Progress
TEST(Progress, ShortRunsPrintEveryStep) {
  const auto text = shown(7, 10, false, 50);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

// promise: progress.h#Progress
TEST(Progress, OnATerminalOneLineIsRewritten) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(::ptsname(terminal), "w"),
                                                               std::fclose);
    ASSERT_NE(file, nullptr);
    Progress progress(0, 3, {.to = file.get(), .lines = 1});
    for (int step = 1; step <= 3; ++step) progress.show(step, "loss");
    std::string text;
    pollfd to_read{terminal, POLLIN, 0};
    while (text.find('\n') == text.npos && ::poll(&to_read, 1, 10'000) > 0) {
      char piece[256];
      const auto got = ::read(terminal, piece, sizeof piece);
      if (got <= 0) break;
      text.append(piece, static_cast<std::size_t>(got));
    }
    EXPECT_THAT(text,
                ::testing::MatchesRegex("\r*step 1/3  loss.*\033\\[K\rstep 2/3  loss.*\033\\[K"
                                        "\rstep 3/3  loss.* 0 s left\r*\n"));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  }
  ::close(terminal);
}

// Of a run that goes on from step 1000 the first ten steps took all the time there was.
// promise: progress.h#show
TEST(Progress, SpeedIsThatOfTheStepsSinceItWasMade) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  using Clock = std::chrono::steady_clock;
  const auto outer = Clock::now();
  Progress progress(1000, 1020, {.to = file.get()});
  const auto inner = Clock::now();
  while (Clock::now() - inner < std::chrono::milliseconds(20)) {
  }
  const std::chrono::duration<double> least = Clock::now() - inner;
  progress.show(1010, "");
  const std::chrono::duration<double> most = Clock::now() - outer;
  std::rewind(file.get());
  double speed = 0;
  double left = 0;
  ASSERT_EQ(std::fscanf(file.get(), "step 1010/1020 %lf steps/s %lf s left", &speed, &left), 2);
  EXPECT_LE(speed, 10 / least.count() + 0.1);
  EXPECT_GE(speed, 10 / most.count() - 0.1);
  EXPECT_NEAR(left, 10 / speed, 0.6);
}

TEST(Progress, QuietPrintsNothing) { EXPECT_EQ(shown(0, 10, true, 50), ""); }

}  // namespace
}  // namespace tutti
