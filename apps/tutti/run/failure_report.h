#pragma once

// Finds the first failure, and writes the report of it. Pure functions.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/tutti/run/worker_process.h"
#include "job/rendezvous/blame.h"

namespace tutti::command {

/// The end of one worker.
struct Outcome {
  int rank = 0;
  Ending ending;
  bool was_ended = false;  ///< after `tutti run` had sent it a signal

  /// It failed by itself.
  bool failed() const { return !ending.success() && !was_ended; }
};

/// Rank of the worker whose failure explains the others': the first that ended, among those that
/// failed and did not blame another failed one, itself or by what it heard of; if all of these
/// blame each other, the first that ended. `outcomes` are in order of end. Empty when none failed.
std::optional<int> first_failure(std::span<const Outcome> outcomes, std::span<const Blame> blames);

/// The output of rank `first`, as far as the report needs it.
struct Written {
  std::vector<std::string> last_lines;  ///< oldest first; all have been shown
  std::string frames;                   ///< tells where its stack frames are; empty: it wrote none
};

/// The last thing a user reads of a failed run, as lines. What a worker wrote has been shown, and
/// is not repeated: of what it told the launcher, the first line is part of it unless the worker
/// wrote that too. Where fewer than all workers were `needed`, earlier failures have been survived:
/// then no later one is called their consequence. `workers` of the job, where `outcomes` are those
/// of one host.
std::vector<std::string> failure_report(int first, std::span<const Outcome> outcomes,
                                        std::span<const Blame> blames, const Written& written,
                                        int needed, int workers = 0);

/// True if `needed` workers have ended well by themselves, whatever became of the others.
bool have_finished(std::span<const Outcome> outcomes, int needed);

/// True if workers have saved what they have, and are to be started again (kResumeStatus), and
/// with those that have ended well `needed` have.
bool have_saved(std::span<const Outcome> outcomes, int needed);
bool all_succeeded(std::span<const Outcome> outcomes);
/// The last thing a user reads of such a run.
std::string saved_line();

/// Said at once of a worker that failed while `left` of `workers` have not.
std::string loss_line(const Outcome& lost, int workers, int left);

/// The last thing a user reads of a run that has finished without some workers. `written[r]` is of
/// rank r.
std::vector<std::string> survivors_report(std::span<const Outcome> outcomes,
                                          std::span<const Blame> blames,
                                          std::span<const Written> written);

/// Announces the restart number `restart` of at most `restarts`, after a report.
std::string restart_line(int restart, int restarts);
/// The same for logs, which have no report.
std::string restart_line_with_cause(const Outcome& first, int restart, int restarts);

/// Said while all run, after so many seconds without a worker that joined the job.
std::string nobody_joined_note(int workers, double seconds);

/// Said when all workers ended well and none joined the job: they did not work together.
std::string strangers_note(int workers);

}  // namespace tutti::command
