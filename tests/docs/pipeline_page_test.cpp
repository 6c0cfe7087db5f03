// docs/pipeline.md shows what the code gives: the printed timeline, the pictures, the bubbles.

#include <gmock/gmock.h>

#include <iomanip>
#include <sstream>

#include "docs/pages.h"
#include "tutti/pipeline_timeline.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

std::string page() { return text_of(source_folder() / "docs/pipeline.md"); }

// promise: pipeline_timeline.h#text
TEST(PipelinePage, PrintsTheTimelineOfItsCommand) {
  const auto timeline = simulate(
      PipelineSchedule::zb_h1(4, 8),
      PipelineCosts::equal(4, {.activation_bytes = 100'000'000, .weight_half_bytes = 40'000'000}));
  EXPECT_THAT(page(), HasSubstr(timeline.text()));
}

// promise: pipeline_timeline.h#picture
TEST(PipelinePage, HasThePicturesOfItsSchedules) {
  const auto image = [](const char* name) {
    return text_of(source_folder() / "docs" / "images" / name);
  };
  EXPECT_THAT(page(), HasSubstr("](images/pipeline_1f1b.svg)"));
  EXPECT_THAT(page(), HasSubstr("](images/pipeline_zb_h1.svg)"));
  EXPECT_EQ(image("pipeline_1f1b.svg"),
            simulate(PipelineSchedule::one_f_one_b(4, 8), PipelineCosts::equal(4)).picture());
  EXPECT_EQ(image("pipeline_zb_h1.svg"),
            simulate(PipelineSchedule::zb_h1(4, 8), PipelineCosts::equal(4)).picture());
}

TEST(PipelinePage, HasTheBubblesThatAreSimulated) {
  const auto row = [](const char* kind) {
    const auto text = page();
    const auto at = text.find(std::string("| `") + kind + "` |");
    return text.substr(at, text.find('\n', at) - at);
  };
  const auto bubble = [](const PipelineSchedule& schedule) {
    const auto timeline = simulate(schedule, PipelineCosts::equal(schedule.stages()));
    std::ostringstream text;
    text << "| " << std::fixed << std::setprecision(1) << 100 * timeline.bubble() << " %";
    return text.str();
  };
  EXPECT_THAT(row("gpipe"), HasSubstr(bubble(PipelineSchedule::gpipe(4, 8))));
  EXPECT_THAT(row("1f1b"), HasSubstr(bubble(PipelineSchedule::one_f_one_b(4, 8))));
  EXPECT_THAT(row("interleaved"), HasSubstr(bubble(PipelineSchedule::interleaved(4, 2, 8))));
  EXPECT_THAT(row("zb-h1"), HasSubstr(bubble(PipelineSchedule::zb_h1(4, 8))));
}

}  // namespace
}  // namespace tutti
