#pragma once

// What threads of this worker have started and not waited for: while a thread waits for something
// else, it takes its own further.
//
// Threads: any. Something is moved by one thread at a time: another user takes it out
// first.

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti {

/// Something started that needs its worker now and then.
class Unfinished {
 public:
  virtual ~Unfinished() = default;
  /// Does what can be done without waiting. What fails is kept for who waits for it. True when
  /// something has moved.
  virtual bool progress() = 0;
};

class Background {
 public:
  /// `what` belongs to the calling thread, or the one that it works for (helper_thread.h); it must
  /// not be in here already.
  void add(Unfinished& what);
  /// Returns once no thread makes progress on it any more.
  void remove(Unfinished& what);
  /// Moves what belongs to that thread. True when something has moved. From inside of what
  /// moves it does nothing.
  bool progress();
  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }

 private:
  /// Held while something moves: a thread that takes out another one waits for that long.
  std::mutex mutex_;
  std::vector<std::pair<Unfinished*, const void*>> all_;  ///< with the thread's mark
  std::atomic<int> count_{0};
};

}  // namespace tutti
