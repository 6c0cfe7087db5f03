#include "job/gather.h"

#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "job/wait.h"
#include "job/wire/rank_set.h"
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
                           Parcel mine, const std::function<void()>& check) {
  // A worker that waits for the same notes it on the board: the others have not come.
  const std::string shown = tag.substr(0, sizeof(decltype(WaitNotice::text)::words));
  const auto missing = [&] {
    RankSet late;
    for (const int rank : ranks) {
      const WaitNotice& notice = job.slot(rank).notice;
      if (!read(notice).in_wait() || read(notice.text) != shown) late.insert(rank);
    }
    return late;
  };
  std::optional<WaitWatch> watch;
  RankSet reported;
  std::exception_ptr reason;
  const auto poll_peers = [&] {
    if (check) {
      try {
        check();
      } catch (...) {
        reason = std::current_exception();
        return false;
      }
    }
    const RankSet gone = (job.gone().all & RankSet::of(ranks)) - reported;
    for (const int rank : gone.ranks()) job.rendezvous().report_end(rank);
    reported |= gone;
    if (!watch) {
      watch.emplace(job,
                    WaitSubject{.missing = missing,
                                .members = RankSet::of(ranks),
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
    job.require_hosts(tag);
    // A worker that ends because of what it saw has told that before.
    if (check) check();
    job.rendezvous().blame(lost.rank(), lost.what());
    throw;
  } catch (const Timeout&) {
    if (reason) std::rethrow_exception(reason);
    // Another worker gave up first: what it saw has reached this host before its giving up.
    if (check) check();
    throw;
  }
}

}  // namespace tutti
