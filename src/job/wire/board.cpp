#include "job/wire/board.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/futex.h"

namespace tutti {
namespace {

/// A writer is a few dozen stores from its end, unless it was stopped or killed within them.
constexpr int kReadAttempts = 1000;

/// Copies until no writer was active meanwhile; false where one never ends. Writers store with
/// release order and this loads with acquire order: who sees a new value then also sees the odd
/// version before it.
bool read_bytes(const std::atomic<std::uint32_t>& version, const std::atomic<std::uint64_t>* words,
                std::size_t bytes, char* to) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const std::uint32_t before = version.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      for (std::size_t at = 0; at < bytes; at += 8) {
        const std::uint64_t word = words[at / 8].load(std::memory_order_acquire);
        std::memcpy(to + at, &word, 8);
      }
      if (version.load(std::memory_order_relaxed) == before) return true;
    }
    if (attempt % 16 == 15) std::this_thread::yield();
  }
  return false;
}

class Writing {
 public:
  explicit Writing(std::atomic<std::uint32_t>& version)
      : version_(version), begun_(version.load(std::memory_order_relaxed) | 1U) {
    version_.store(begun_, std::memory_order_relaxed);
  }
  ~Writing() { version_.store(begun_ + 1, std::memory_order_release); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  std::atomic<std::uint32_t>& version_;
  std::uint32_t begun_;
};

}  // namespace

void write_bytes(std::atomic<std::uint32_t>& version, std::atomic<std::uint64_t>* words,
                 std::size_t bytes, std::string_view from) {
  from = from.substr(0, bytes);
  const Writing writing(version);
  for (std::size_t at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    if (at < from.size())
      std::memcpy(&word, from.data() + at, std::min<std::size_t>(8, from.size() - at));
    words[at / 8].store(word, std::memory_order_release);
  }
}

std::string read_text(const std::atomic<std::uint32_t>& version,
                      const std::atomic<std::uint64_t>* words, std::size_t bytes) {
  std::string text(bytes, '\0');
  if (!read_bytes(version, words, bytes, text.data())) return {};
  text.resize(std::min(text.find('\0'), bytes));
  return text;
}

std::string_view bytes_of(const NoticeView& view) {
  return {reinterpret_cast<const char*>(&view), sizeof view};
}

void publish(WaitNotice& notice, const NoticeView& view) {
  const std::string_view bytes = bytes_of(view);
  write_bytes(notice.view.version, notice.view.words.data(), bytes.size(), bytes);
}

NoticeView read(const WaitNotice& notice) {
  NoticeView view;
  const bool whole = read_bytes(notice.view.version, notice.view.words.data(), sizeof view,
                                reinterpret_cast<char*>(&view));
  return whole ? view : NoticeView{};
}

void begin_sleep(Board& board, WorkerSlot& worker) {
  board.sleepers.fetch_add(1, std::memory_order_seq_cst);
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  // The sum is incremented first: if this thread is killed in between, it stays counted, and no
  // sleeper is missed.
  worker.sleepers.fetch_add(1, std::memory_order_release);
}

void end_sleep(Board& board, WorkerSlot& worker) {
  // Unless a watcher has taken this worker for dead, and its sleepers off the sum.
  std::uint32_t own = worker.sleepers.load(std::memory_order_relaxed);
  while (own > 0 && !worker.sleepers.compare_exchange_weak(own, own - 1, std::memory_order_acquire))
    ;
  if (own > 0) board.sleepers.fetch_sub(1, std::memory_order_release);
}

void mark_ended(Board& board, WorkerSlot& worker) {
  board.sleepers.fetch_sub(worker.sleepers.exchange(0, std::memory_order_acq_rel),
                           std::memory_order_relaxed);
  worker.ended.store(1, std::memory_order_release);
  announce(board);
}

void mark_cut_off(Board& board, int rank) {
  std::int32_t nobody = Board::kNobody;
  board.cut_off_by.compare_exchange_strong(nobody, rank, std::memory_order_release,
                                           std::memory_order_relaxed);
}

void announce(Board& board) {
  // Pairs with the registration of a sleeper: either it sees the caller's store, or this sees it.
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer does not know fences. A read-modify-write of `sleepers` orders as well.
  const std::uint32_t sleepers = board.sleepers.fetch_add(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t sleepers = board.sleepers.load(std::memory_order_relaxed);
#endif
  if (sleepers == 0) return;
  board.event.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(board.event);
}

}  // namespace tutti
