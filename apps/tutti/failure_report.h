#pragma once

// Which failure came first, and what is said about it. Pure.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "job/broker.h"
#include "worker_process.h"

namespace tutti::command {

/// How one worker ended.
struct Outcome {
  int rank = 0;
  Ending ending;
  bool was_ended = false;  ///< after `tutti run` had sent it a signal

  /// It failed by itself.
  bool failed() const { return !ending.success() && !was_ended; }
};

/// Rank of the worker whose failure explains the others': the first that ended, among those that
/// failed and did not blame another failed one; if all of these blame each other, the first that
/// ended. `outcomes` are in order of end. Empty when none failed.
std::optional<int> first_failure(std::span<const Outcome> outcomes, std::span<const Blame> blames);

/// The last thing a user reads of a failed run, as lines. `last_lines` are those of rank `first`.
std::vector<std::string> failure_report(int first, std::span<const Outcome> outcomes,
                                        std::span<const Blame> blames,
                                        std::span<const std::string> last_lines);

/// Announces the restart number `restart` of at most `restarts`, because of `first`.
std::string restart_line(const Outcome& first, int restart, int restarts);

/// Said when all workers ended well and none joined the job: they did not work together.
std::string strangers_note(int workers);

}  // namespace tutti::command
