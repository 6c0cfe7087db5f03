#include "job/gather.h"

#include <optional>
#include <thread>
#include <utility>

#include "job/rank_set.h"
#include "job/wait.h"
#include "tutti/error.h"

namespace tutti {

namespace {

/// Time within each kPatienceInterval for calls that were started before.
constexpr std::chrono::milliseconds kProgressTime{50};
/// Time without progress after which other members are taken to be busy elsewhere.
constexpr std::chrono::milliseconds kStandstill{1};

void progress_for(JobState& job, Clock::duration time) {
  const auto end = Clock::now() + time;
  auto moved = Clock::now();
  for (auto now = moved; now < end && now - moved < kStandstill; now = Clock::now()) {
    if (job.background().is_empty()) return;
    if (job.background().progress()) {
      moved = now;
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

std::vector<Parcel> gather(JobState& job, const std::string& tag, const std::vector<int>& ranks,
                           Parcel mine) {
  // A worker that waits for the same notes it on the board: the others have not come.
  const std::string shown = tag.substr(0, sizeof(decltype(WaitNotice::text)::words));
  const auto missing = [&] {
    std::uint64_t bits = 0;
    for (const int rank : ranks) {
      const WaitNotice& notice = job.slot(rank).notice;
      if (!read(notice).in_wait() || read(notice.text) != shown) bits |= rank_bit(rank);
    }
    return bits;
  };
  std::optional<WaitWatch> watch;
  std::uint64_t reported = 0;
  const auto poll_peers = [&] {
    const std::uint64_t gone = job.gone().all & set_of(ranks) & ~reported;
    for (const int rank : ranks_of(gone)) job.rendezvous().report_end(rank);
    reported |= gone;
    if (!watch) {
      watch.emplace(job,
                    WaitSubject{.missing = missing,
                                .members = set_of(ranks),
                                .what = [&] { return tag; },
                                .check = {},
                                .deadline = job.deadline()},
                    job.system().now());
    }
    progress_for(job, kProgressTime);
    return watch->poll_peers();
  };
  try {
    return job.rendezvous().all_gather(tag, ranks, std::move(mine),
                                       Deadline{Clock::time_point::max()}, poll_peers);
  } catch (const PeerLost& lost) {
    job.rendezvous().blame(lost.rank(), lost.what());
    throw;
  }
}

}  // namespace tutti
