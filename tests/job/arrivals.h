#pragma once

// The smallest thing that waits as collectives do: every rank says how far it is.

#include <array>
#include <atomic>
#include <bit>
#include <string>
#include <thread>

#include "job/job_state.h"
#include "job/wait.h"
#include "job/wire/rank_set.h"

namespace tutti::test {

struct Arrivals {
  std::array<std::atomic<int>, kMaxWorkers> at{};
  bool needs_calls = true;

  void arrive(const Job& job, int place) {
    at[static_cast<std::size_t>(job.rank())].store(place, std::memory_order_release);
    announce(job.state()->board());
  }
  RankSet missing(const RankSet& members, int place) const {
    RankSet missing;
    for (const int rank : members.ranks())
      if (at[static_cast<std::size_t>(rank)].load(std::memory_order_acquire) < place)
        missing.insert(rank);
    return missing;
  }
  /// Waits until all of `members` have come to `place`.
  void await(const Job& job, int place, const std::string& what, const RankSet& members,
             std::chrono::milliseconds deadline = std::chrono::seconds(60)) const {
    JobState& state = *job.state();
    wait_until(
        state, [&] { return missing(members, place).empty(); },
        [&] {
          WaitSubject subject;
          subject.missing = [this, members, place] { return missing(members, place); };
          subject.members = members;
          subject.what = [what] { return what; };
          subject.deadline = state.deadline(deadline);
          subject.needs_calls = needs_calls;
          return subject;
        });
  }
  void await(const Job& job, int place, const std::string& what) const {
    await(job, place, what, RankSet::below(job.size()));
  }
  /// Polls, with nothing of wait.h: for ranks that play dead or busy.
  template <class Condition>
  static void poll_until(Condition condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
};

/// Polls until the others' notices on the board say that they wait for `rank`.
inline void poll_until_awaited(const Job& job, int by, int rank) {
  Arrivals::poll_until([&] {
    const NoticeView notice = read(job.state()->slot(by).notice);
    return notice.in_wait() && notice.missing.contains(rank);
  });
}

inline void poll_until_busy(const Job& job, int rank) {
  Arrivals::poll_until([&] { return job.state()->slot(rank).busy_until.load() != 0; });
}

}  // namespace tutti::test
