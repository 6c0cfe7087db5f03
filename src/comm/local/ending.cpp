#include "comm/local/ending.h"

#include "job/wait.h"

namespace tutti {

void EndingReason::raise() const {
  switch (kind) {
    case EndingKind::mismatch:
      throw Mismatch(text);
    case EndingKind::peer_lost:
      throw PeerLost(job_rank, text);
    case EndingKind::timeout:
      throw Timeout(text);
    case EndingKind::aborted:
      break;
  }
  throw Error(text);
}

void end_with(Ending& ending, const EndingReason& reason,
              const std::function<std::uint64_t()>& first_failed) {
  std::uint32_t expected = Ending::open;
  if (!ending.state.compare_exchange_strong(expected, Ending::being_written)) return;
  ending.kind.store(static_cast<std::uint32_t>(reason.kind), std::memory_order_relaxed);
  ending.job_rank.store(reason.job_rank, std::memory_order_relaxed);
  ending.found_by.store(reason.found_by, std::memory_order_relaxed);
  ending.call.store(first_failed(), std::memory_order_relaxed);
  write(ending.text, reason.text);
  ending.state.store(Ending::written, std::memory_order_release);
}

EndingReason reason_of(const Ending& ending) {
  constexpr int kPatience = 1 << 20;
  for (int i = 0; i < kPatience; ++i) {
    if (ending.state.load(std::memory_order_acquire) == Ending::written) {
      return {static_cast<EndingKind>(ending.kind.load(std::memory_order_relaxed)),
              ending.job_rank.load(std::memory_order_relaxed),
              ending.found_by.load(std::memory_order_relaxed),
              ending.call.load(std::memory_order_relaxed), read(ending.text)};
    }
    pause_cpu();
  }
  return {EndingKind::aborted, -1, -1, 0, "the group was ended by a worker that died saying why"};
}

}  // namespace tutti
