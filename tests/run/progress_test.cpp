#include "tutti/progress.h"

#include <gmock/gmock.h>

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

TEST(Progress, PrintsAFewPlainLinesAndTheLastStep) {
  const auto text = shown(0, 103, false, 5);
  EXPECT_THAT(text, StartsWith("step 21/103  loss 1.5  "));
  EXPECT_THAT(text, HasSubstr("step 103/103  loss 1.5  "));
  EXPECT_THAT(text, HasSubstr(" 0 s left\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Progress, ShortRunsPrintEveryStep) {
  const auto text = shown(7, 10, false, 50);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Progress, QuietPrintsNothing) { EXPECT_EQ(shown(0, 10, true, 50), ""); }

}  // namespace
}  // namespace tutti
