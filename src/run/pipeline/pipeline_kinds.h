#pragma once

// The orders of the known kinds of pipeline schedules: actions by worker.
//
// Threads: any. Failure: none; numbers are checked before.

#include <vector>

#include "tutti/pipeline_schedule.h"

namespace tutti {

using ActionsOfWorkers = std::vector<std::vector<StageAction>>;

ActionsOfWorkers gpipe_actions(int stages, int micro_batches);
ActionsOfWorkers one_f_one_b_actions(int stages, int micro_batches);
ActionsOfWorkers interleaved_actions(int workers, int stages_per_worker, int micro_batches);
ActionsOfWorkers zb_h1_actions(int stages, int micro_batches);

}  // namespace tutti
