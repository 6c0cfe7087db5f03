#pragma once

// What a worker that waits shows of it, what that tells those who wait for it, and the proof that
// workers wait for one another, each in something the others have not reached.
//
// Proof. The circle is the set of workers from which, by what each lacks, this one is reached and
// which reach it (a strongly connected component of all notices). Each notice has a number. Each
// worker on the circle sees the notices of all, looks once more whether its own wait is over, and
// says that it has looked after these notices (NoticeView::seen). Once all say so, no worker on the
// circle can proceed. For when the last of these notices was shown, all were in their waits, and
// what each of them had stored before had taken effect where its notice was seen; what each lacks
// was missing after that, and could only come from a worker on the circle, all of which wait.
//
// Across hosts a notice is a store in the one order of all hosts (job/publish.h), behind what its
// worker stored before. On its own host it is seen at once, and counts while none of its worker's
// stores is on its way. Other hosts are told of a wait that lasts, and of its end.
//
// That holds for what only a call of the other's program provides (WaitSubject::needs_calls): what
// workers do for others while they wait (job/background.h), and what is on its way over a link, is
// no part of a proof. Neither is a worker that has another thread, which may use the job although
// it never has, or that has declared itself busy. There the deadline decides.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "job/job_state.h"

namespace tutti {

class DeadlockWatch {
 public:
  explicit DeadlockWatch(JobState& job) : job_(job) {}

  /// Shows the wait, which was found so just now. The number and what was seen are this class's
  /// business; `what` is asked once.
  void show(NoticeView view, const std::function<std::string()>& what);
  /// The wait is over.
  void hide();

  /// Returns the ranks on a proven circle, each waiting for the next, lowest first; empty while
  /// there is no proof. Must be called repeatedly, right after show().
  std::optional<std::vector<int>> proven_cycle();

  /// Lets the other workers on the circle come to the same proof before this one leaves its wait.
  void linger();

  /// "rank 0 waits for rank 1 in …; rank 1 waits for rank 0 in …", and what that usually means.
  std::string describe(const std::vector<int>& cycle) const;

 private:
  int own_rank() const { return job_.identity().rank; }
  NoticeView provable(int rank) const;
  void put(const NoticeView& view);
  bool is_time_to_tell(const NoticeView& view, Clock::time_point now) const;
  void forget_circle();

  JobState& job_;
  NoticeView shown_;
  NoticeView told_;  ///< what other hosts know
  Clock::time_point told_at_;
  RankSet circle_;
  std::uint64_t hash_ = 0;   ///< of the circle's notices; 0: none
  Clock::time_point found_;  ///< when it was first seen so
  bool stands_ = false;      ///< it has stood for long enough to say that it was seen
};

/// Those of `ranks` that are late: each neither is busy, nor waits for one that is.
RankSet not_excused(const JobState& job, const RankSet& ranks, Clock::time_point now);
/// "; rank 2 waits for rank 3 in barrier"; `otherwise` where they show nothing.
std::string doings_of(const JobState& job, const RankSet& ranks, const char* otherwise = "");

}  // namespace tutti
