#pragma once

// The one way in which Tutti waits for other workers: spin briefly, then sleep on the board's futex
// word under a deadline, and while asleep notice death, stalls, and workers that wait for each
// other.
//
// A condition becomes true through a store by another worker followed by announce(board).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/futex.h"
#include "job/job_state.h"
#include "job/wire/rank_set.h"

namespace tutti {

/// Description of a wait. The callbacks are only called once the wait has become slow.
struct WaitSubject {
  /// The job ranks that have not done what this wait needs, evaluated now.
  std::function<RankSet()> missing;
  /// All job ranks that take part.
  RankSet members = {};
  /// "step 17, all-reduce of \"encoder.weight\"": follows "has not reached".
  std::function<std::string()> what;
  /// Throws when the thing waited for can no longer happen for a reason of its own (a group that
  /// was ended, a peer that closed). May be empty.
  std::function<void()> check;
  Deadline deadline;
  /// Named if nobody is missing and it does not come all the same: who passes it on.
  RankSet passed_on_by = {};
  /// What is missing is a call that the others' programs have to make, which they tell by
  /// publish(). Nobody makes it while he waits in another one, so that workers can be proven to
  /// wait for one another.
  bool needs_calls = false;
};

class SlowWait;

/// Watches over a wait that sleeps elsewhere: shows it on the board, logs stalls, and does not
/// count the time of busy workers. `check` is not asked, and such a wait is no part of a proof that
/// workers wait for one another.
class WaitWatch {
 public:
  /// `since`: when the wait began.
  WaitWatch(JobState& job, WaitSubject subject, Clock::time_point since);
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  /// Must be called periodically; returns false once the deadline has passed.
  bool poll_peers();
  /// The same for a caller that polls and may do other things meanwhile: nothing is shown on the
  /// board. Throws what sleep_until() would throw, but for workers that wait for one another.
  void check();

 private:
  WaitSubject subject_;
  std::function<bool()> never_;
  std::unique_ptr<SlowWait> wait_;
};

/// Middle part of wait_until: lets other threads run for a moment. True when ready() has become
/// true.
bool yield_until(JobState& job, const std::function<bool()>& ready);

/// Slow part of wait_until: sleeps until `ready`. Throws PeerLost, Timeout, Mismatch (workers wait
/// for one another in different operations), or whatever subject.check throws.
void sleep_until(JobState& job, const std::function<bool()>& ready, const WaitSubject& subject);

/// Returns when ready() is true. `subject` is a callable that makes the WaitSubject; it is called
/// only when spinning was not enough.
template <class Ready, class MakeSubject>
void wait_until(JobState& job, Ready&& ready, MakeSubject&& subject) {
  for (int round = job.spin_rounds(); round > 0; --round) {
    if (ready()) return;
    pause_cpu();
  }
  if (ready() || yield_until(job, ready)) return;
  // The deadline is made here, where it begins to count: a stop before does not shorten it.
  sleep_until(job, ready, subject());
}

}  // namespace tutti
