#pragma once

// How a backward ends. One that an exception ends leaves no word by itself: its list of final
// callbacks dies uncalled, on the thread of a device maybe after backward() has thrown. Whoever
// comes first tells: the list, or the next call of the watch's owner.
//
// Threads: `completed` is called by the thread that ends the backward, `aborted` by any, while the
// owner's settle() and destructor wait. Failure: that of `completed`, which backward() throws.

#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "base/helper_thread.h"

namespace tutti {

class BackwardWatch {
 public:
  using Completed = std::function<void()>;
  /// Null: an exception that is none of std::exception's. Must not throw, nor use the watch.
  using Aborted = std::function<void(std::exception_ptr error)>;

  /// `on_device`: a thread of libtorch's calls hooks and callbacks, for the program's.
  explicit BackwardWatch(bool on_device) : on_device_(on_device) {}
  ~BackwardWatch() { leave(); }
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// Watches the running backward, and no other any more. One of the two is called, once.
  void watch(Completed completed, Aborted aborted);
  /// The program has called, from the thread that is to call backward(): settle().
  void entered();
  /// settle(), from a hook. While the result lives the calling thread works for the program's.
  [[nodiscard]] std::optional<WorksFor> hooked() const;
  /// Calls `aborted` where an exception has ended the backward, and nobody has done so.
  void settle() const;
  /// None is called any more.
  void leave();

 private:
  class State;
  class Guard;
  bool on_device_;
  std::shared_ptr<State> state_;
  ProgramThread program_ = ProgramThread::own();
};

}  // namespace tutti
