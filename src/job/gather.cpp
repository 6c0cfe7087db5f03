#include "job/gather.h"

#include <optional>
#include <utility>

#include "job/rank_set.h"
#include "job/wait.h"
#include "tutti/error.h"

namespace tutti {

std::vector<Parcel> gather(JobState& job, const std::string& tag, const std::vector<int>& ranks,
                           Parcel mine) {
  // Who waits for the same says so on the board: the others have not come.
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
  const auto look_around = [&] {
    const std::uint64_t gone = job.gone().all & set_of(ranks) & ~reported;
    for (const int rank : ranks_of(gone)) job.rendezvous().report_end(rank);
    reported |= gone;
    if (!watch) {
      watch.emplace(job, WaitSubject{.missing = missing,
                                     .members = set_of(ranks),
                                     .what = [&] { return tag; },
                                     .check = {},
                                     .deadline = job.deadline()});
    }
    return watch->look_around();
  };
  try {
    return job.rendezvous().all_gather(tag, ranks, std::move(mine),
                                       Deadline{Clock::time_point::max()}, look_around);
  } catch (const PeerLost& lost) {
    job.rendezvous().blame(lost.rank(), lost.what());
    throw;
  }
}

}  // namespace tutti
