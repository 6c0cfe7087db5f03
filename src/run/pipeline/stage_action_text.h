#pragma once

// A compute's text, read back: what `tutti schedule --profile` finds in a run's timeline.
//
// Threads: pure functions. Failure: none.

#include <optional>
#include <string_view>

#include "tutti/pipeline_schedule.h"

namespace tutti {

/// The action whose text_of() is `text`; nothing for any other text.
std::optional<StageAction> stage_action_of(std::string_view text);

}  // namespace tutti
