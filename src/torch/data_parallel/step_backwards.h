#pragma once

// Which backwards give gradients to a step of a DataParallel: a single one, which opens the step;
// or in an accumulation scope those of its leaves, any number in each. The last one of a leaf is
// known where it is the leaf's loss that is run backward.
//
// Threads: the one that runs backward.

#include <cstdint>

namespace tutti {

class StepBackwards {
 public:
  // ---- accumulation scopes ----

  void open_scope() {
    in_scope_ = true;
    ++scopes_;
  }
  void end_scope() { in_scope_ = false; }
  bool in_scope() const { return in_scope_; }
  /// Number of the accumulation scope that is open; 0 if none is.
  std::uint64_t scope() const { return in_scope_ ? scopes_ : 0; }
  void begin_leaf() { in_leaf_ = true; }
  void end_leaf() { in_leaf_ = false; }
  bool in_leaf() const { return in_scope_ && in_leaf_; }
  /// The backward that comes is the last one of the open leaf.
  void begin_last() {
    current_ = kNone;
    in_last_ = true;
  }
  void end_last() { in_last_ = false; }
  /// The step has failed: no scope is open.
  void drop() noexcept {
    if (in_scope_) dropped_scope_ = scopes_;
    in_scope_ = in_last_ = false;
  }
  /// The step has failed while the closure of a leaf goes on: what it computes belongs to no step.
  bool is_given_up() const { return in_leaf_ && !in_scope_; }
  /// Number of the last accumulation scope whose step has failed; 0 if none has.
  std::uint64_t dropped_scope() const { return dropped_scope_; }

  // ---- single backwards: numbers are current_backward()'s ----

  /// False for a backward inside which another one has opened a step since.
  bool may_open(int backward) const { return backward >= latest_; }
  /// That one opens a step.
  void open(int backward) { current_ = latest_ = backward; }
  /// It has ended.
  void end() { current_ = kNone; }

  // ---- gradients ----

  /// No other gradient of its parameter comes in this leaf.
  bool is_last() const { return !in_scope_ || in_last_; }
  /// Whether `backward` gives the gradients that are last: false where another one has given some.
  bool is_current(int backward) {
    if (current_ == kNone) current_ = backward;
    return current_ == backward;
  }

 private:
  static constexpr int kNone = -1;

  bool in_scope_ = false;
  std::uint64_t scopes_ = 0;  ///< opened so far
  bool in_leaf_ = false;      ///< the closure of a leaf runs
  bool in_last_ = false;
  std::uint64_t dropped_scope_ = 0;
  int current_ = kNone;  ///< whose gradients are being taken
  int latest_ = kNone;   ///< that opened a step
};

}  // namespace tutti
