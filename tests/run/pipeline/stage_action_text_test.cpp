#include "run/pipeline/stage_action_text.h"

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

TEST(StageActionText, IsReadBackAsItWasWritten) {
  EXPECT_EQ(tutti::text_of({StageWork::forward, 2, 5}), "forward of stage 2, micro-batch 5");
  for (const auto work : {StageWork::forward, StageWork::backward, StageWork::backward_input,
                          StageWork::backward_weight}) {
    for (const int stage : {0, 1, 63, 2147483647}) {
      for (const int micro_batch : {0, 10, 2147483647}) {
        const StageAction action{work, stage, micro_batch};
        EXPECT_EQ(stage_action_of(tutti::text_of(action)), action) << text_of(action);
      }
    }
  }
}

TEST(StageActionText, AnyOtherTextIsNone) {
  for (const char* text :
       {"", "forward", "forward of stage ", "forward of stage 2",
        "forward of stage 2, micro-batch ", "forward of stage 2, micro-batch 5 ",
        "forward of stage -1, micro-batch 5", "forward of stage 02, micro-batch 5",
        "forward of stage 2, micro-batch 2147483648", "Forward of stage 2, micro-batch 5",
        "a forward of stage 2, micro-batch 5", "backward (output) of stage 2, micro-batch 5",
        "forward of stage , micro-batch 5"}) {
    EXPECT_EQ(stage_action_of(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tutti::test
