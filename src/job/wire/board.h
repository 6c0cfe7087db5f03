#pragma once

// The job's notice board: one small block of shared memory with a slot per worker. It tells who is
// there, who has ended, who is busy, who waits for whom, and holds the one word that sleepers sleep
// on.
//
// Only plain atomics live here, all lock-free, so that threads, processes and the thread sanitizer
// see the same thing. A slot is written by its owner alone, except `ended`, which any watcher sets,
// and the `sleepers` of a worker that has ended.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "job/wire/rank_set.h"

namespace tutti {

inline constexpr std::size_t kCacheLine = 64;

/// Bytes that one worker writes and others may read at any time: torn reads are detected.
template <std::size_t Bytes>
struct SharedBytes {
  static_assert(Bytes % 8 == 0);
  std::atomic<std::uint32_t> version{0};  ///< odd while being written
  std::array<std::atomic<std::uint64_t>, Bytes / 8> words{};
};

template <std::size_t Bytes>
using SharedText = SharedBytes<Bytes>;

/// The numbers of a worker's notice: its wait, at one moment. Other hosts get to know it once it
/// lasts, and less often (job/deadlock.h).
struct NoticeView {
  enum State : std::uint32_t {
    none = 0,
    waiting = 1,     ///< in a slow wait, and does nothing else
    deadlocked = 2,  ///< the same, and has proven that the wait cannot end
    shared = 3       ///< in a slow wait, but it may end by more than what workers have announced
  };
  std::uint32_t state = none;
  std::uint32_t number = 0;    ///< of the notices of this wait, as DeadlockWatch counts them
  std::int64_t since = 0;      ///< ns, Clock of its host: when this wait began
  std::int64_t evaluated = 0;  ///< ns, Clock of its host: when `missing` was last found true
  std::uint64_t seen =
      0;                 ///< the circle that it has looked again after, as DeadlockWatch hashes it
  RankSet missing = {};  ///< the job ranks that it waits for
  bool in_wait() const { return state != none; }
};
static_assert(std::is_trivially_copyable_v<NoticeView> && sizeof(NoticeView) % 8 == 0);

/// The wait of a worker that sleeps.
struct WaitNotice {
  SharedBytes<sizeof(NoticeView)> view;
  SharedText<192> text;  ///< "all-reduce of \"encoder.weight\", step 17"
};

struct alignas(kCacheLine) WorkerSlot {
  enum State : std::uint32_t { absent = 0, joined = 1, left = 2 };
  std::atomic<std::uint32_t> state{absent};
  std::atomic<std::uint32_t> ended{0};      ///< its process is gone
  std::atomic<std::uint32_t> sleepers{0};   ///< how many of Board::sleepers are its threads
  std::atomic<std::int64_t> busy_until{0};  ///< ns, Clock; 0 when not busy
  SharedText<64> busy_what;
  // Stores that take effect in the order of all hosts (job/publish.h), counted: what is between the
  // two is still on its way.
  std::atomic<std::uint64_t> stores_sent{0};  ///< 0 on the boards of other hosts
  std::atomic<std::uint64_t> stores_done{0};  ///< on this host
  WaitNotice notice;
};

struct Board {
  static constexpr std::int32_t kNobody = -1;
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> event{0};  ///< futex word
  /// The worker with whose end this host lost its way to all others; kNobody while there is one.
  /// Each host has its own.
  std::atomic<std::int32_t> cut_off_by{kNobody};
  std::array<WorkerSlot, kMaxWorkers> workers;  ///< by job rank
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Writes shared bytes: what is longer is cut, what is shorter is followed by zeros.
void write_bytes(std::atomic<std::uint32_t>& version, std::atomic<std::uint64_t>* words,
                 std::size_t bytes, std::string_view from);
/// Shared bytes up to the first zero; an empty text where a writer never ends.
std::string read_text(const std::atomic<std::uint32_t>& version,
                      const std::atomic<std::uint64_t>* words, std::size_t bytes);
template <std::size_t Bytes>
void write(SharedBytes<Bytes>& to, std::string_view text) {
  write_bytes(to.version, to.words.data(), Bytes, text);
}
template <std::size_t Bytes>
std::string read(const SharedBytes<Bytes>& from) {
  return read_text(from.version, from.words.data(), Bytes);
}

std::string_view bytes_of(const NoticeView& view);
void publish(WaitNotice& notice, const NoticeView& view);
/// The numbers of a notice; `none` when a writer never comes to an end.
NoticeView read(const WaitNotice& notice);

/// A thread of `worker` is about to sleep on Board::event, or has slept. A thread that ends in
/// between is taken off the count by mark_ended().
void begin_sleep(Board& board, WorkerSlot& worker);
void end_sleep(Board& board, WorkerSlot& worker);
/// Both, for as long as it exists: announce() then wakes this thread.
class Sleeper {
 public:
  Sleeper(Board& board, WorkerSlot& worker) : board_(board), worker_(worker) {
    begin_sleep(board_, worker_);
  }
  ~Sleeper() { end_sleep(board_, worker_); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Board& board_;
  WorkerSlot& worker_;
};
/// Marks the worker's process as ended on the board, and wakes all sleepers.
void mark_ended(Board& board, WorkerSlot& worker);
/// Marks this host as cut off by the end of a worker; the first one stays. To be called before the
/// workers of other hosts are marked as ended: who sees that they are sees why.
void mark_cut_off(Board& board, int rank);

/// Must be called after every store that a worker may be waiting for. Costs a fence and a load
/// where no worker sleeps.
void announce(Board& board);

}  // namespace tutti
