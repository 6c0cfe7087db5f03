#pragma once

// One line of a step log (step_log.h), taken apart.
//
// Threads: pure functions. Failure: Corrupt, and Unsupported for another version.

#include <cstdint>
#include <string>
#include <string_view>

#include "run/files/run_fingerprint.h"
#include "run/log/step_log.h"

namespace tutti {

struct StepLogLine {
  enum class Kind { header, digests, metrics };
  Kind kind = Kind::metrics;
  std::int64_t step = 0;      ///< of a header: steps that were over
  RunFingerprint facts = {};  ///< of a header
  NamedDigests digests = {};  ///< in the order of the line
};

/// Members that are not known are passed over; `where` begins the error's text.
StepLogLine parse_step_log_line(std::string_view text, const std::string& where);

}  // namespace tutti
