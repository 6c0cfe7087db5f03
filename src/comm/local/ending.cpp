#include "comm/local/ending.h"

#include "job/publish.h"
#include "job/wait.h"
#include "job/wire/rank_set.h"

namespace tutti {

void EndingReason::raise() const {
  switch (kind) {
    case EndingKind::mismatch:
      throw Mismatch(text);
    case EndingKind::peer_lost:
      throw PeerLost(job_rank, text);
    case EndingKind::timeout:
      throw Timeout(text);
    case EndingKind::peer_failed:
      break;
  }
  throw PeerFailed(job_rank, 0, text);
}

void end_with(JobState& job, Ending& ending, const EndingReason& reason, int lanes,
              const std::function<std::uint64_t(int lane)>& first_failed) {
  const auto writing = Ending::being_written + static_cast<std::uint32_t>(reason.found_by);
  if (!is_open(ending)) return;
  decide(job, ending.state, std::uint32_t{Ending::open}, writing);
  if (ending.state.load() != writing) return;
  ending.kind.store(static_cast<std::uint32_t>(reason.kind), std::memory_order_relaxed);
  ending.job_rank.store(reason.job_rank, std::memory_order_relaxed);
  ending.found_by.store(reason.found_by, std::memory_order_relaxed);
  for (int lane = 0; lane < lanes; ++lane) {
    ending.first_failed[static_cast<std::size_t>(lane)].store(first_failed(lane),
                                                              std::memory_order_relaxed);
  }
  write(ending.text, reason.text);
  publish(job, ending.state, std::uint32_t{Ending::written}, {published(ending.kind, ending.text)});
}

EndingReason reason_of(const Ending& ending, JobState& job) {
  const auto state = [&] { return ending.state.load(std::memory_order_acquire); };
  wait_until(
      job, [&] { return state() == Ending::written; },
      [&] {
        const auto writer = [&]() -> RankSet {
          const std::uint32_t now = state();
          if (now < Ending::being_written) return {};
          return {static_cast<int>(now - Ending::being_written)};
        };
        return WaitSubject{.missing = writer,
                           .members = writer(),
                           .what = [] { return "the reason why the group was closed"; },
                           .check = {},
                           .deadline = job.deadline()};
      });
  EndingReason reason{.kind = static_cast<EndingKind>(ending.kind.load(std::memory_order_relaxed)),
                      .job_rank = ending.job_rank.load(std::memory_order_relaxed),
                      .found_by = ending.found_by.load(std::memory_order_relaxed),
                      .text = read(ending.text)};
  for (std::size_t lane = 0; lane < reason.first_failed.size(); ++lane) {
    reason.first_failed[lane] = ending.first_failed[lane].load(std::memory_order_relaxed);
  }
  return reason;
}

}  // namespace tutti
