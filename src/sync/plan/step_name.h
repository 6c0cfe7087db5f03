#pragma once

// What a step is called in errors and in timelines, and the way back from there.
//
// Threads: pure functions. Failure: none.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

struct StepName {
  std::int64_t number = 0;
  std::string trained;  ///< name of the Trainer or DataParallel
};

/// `step 3 of "model"`.
std::string step_name(std::int64_t number, std::string_view trained);
/// The way back; nothing for any other text.
std::optional<StepName> step_name_of(std::string_view text);

}  // namespace tutti
