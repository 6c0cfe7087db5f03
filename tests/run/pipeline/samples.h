#pragma once

// Pipeline schedules of all kinds and many sizes, for the tests of this folder.

#include <vector>

#include "tutti/pipeline_schedule.h"

namespace tutti::test {

inline const std::vector<int> kStages = {1, 2, 3, 4, 6, 8};
inline const std::vector<int> kMicroBatches = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 32};

inline std::vector<PipelineSchedule> sample_schedules() {
  std::vector<PipelineSchedule> all;
  for (const int stages : kStages) {
    for (const int micro_batches : kMicroBatches) {
      for (const char* kind : {"gpipe", "1f1b", "zb-h1"}) {
        all.push_back(PipelineSchedule::named(kind, 0, stages, micro_batches));
      }
      for (int workers = 1; workers < stages; ++workers) {
        if (stages % workers != 0 || micro_batches % workers != 0) continue;
        all.push_back(PipelineSchedule::named("interleaved", workers, stages, micro_batches));
      }
    }
  }
  return all;
}

/// The two halves, as others see them.
inline bool makes_input_gradient(const StageAction& action) {
  return action.work == StageWork::backward || action.work == StageWork::backward_input;
}
inline bool makes_weight_gradients(const StageAction& action) {
  return action.work == StageWork::backward || action.work == StageWork::backward_weight;
}

}  // namespace tutti::test
