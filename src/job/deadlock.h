#pragma once

// Finds workers that wait for one another, each in something the others have not reached.
//
// Proof. A cycle of waits is seen at time t1 and again later. If each worker on it is still in the
// same wait, has looked again after t1 at what it waits for and found it missing, and no worker of
// the job announced anything in between, then no worker on the cycle can proceed: only the next one
// could do what each lacks. A worker that has another thread, which may use the job although it
// never has, that has declared itself busy, or that has stores on their way through the order of
// all hosts, is never part of a proof: there the deadline decides.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "job/job_state.h"

namespace tutti {

class DeadlockWatch {
 public:
  explicit DeadlockWatch(JobState& job) : job_(job) {}

  /// Returns the ranks on a proven cycle, each waiting for the next, lowest first; empty while
  /// there is no proof. Must be called repeatedly, right after this worker's notice was published.
  std::optional<std::vector<int>> proven_cycle();

  /// Lets the other workers on the cycle come to the same proof before this one leaves its wait.
  void linger();

  /// "rank 0 waits for rank 1 in …; rank 1 waits for rank 0 in …", and what that usually means.
  std::string describe(const std::vector<int>& cycle) const;

 private:
  struct Member {
    int rank;
    std::int64_t since;
    friend bool operator==(const Member&, const Member&) = default;
  };
  NoticeView provable(int rank) const;
  std::vector<int> find_cycle(const std::vector<NoticeView>& notices) const;

  JobState& job_;
  std::vector<Member> suspects_;
  std::uint32_t event_ = 0;
  Clock::time_point suspected_;
};

}  // namespace tutti
