#pragma once

// Notices a loop over epochs that will not end, because its steps ask for no samples.
//
// Threads: one. Failure: none.

#include <cstdint>

namespace tutti {

class EpochWatch {
 public:
  /// So many steps may pass between two questions, and neither asks for samples, before it is told.
  static constexpr int kPatience = 100;

  /// The program asks for the epoch after so many steps. True once: the loop may not end.
  bool asked(std::int64_t steps) {
    if (asked_after_ == steps) return false;
    asked_after_ = steps;
    return ++in_vain_ == kPatience && !told_ && (told_ = true);
  }
  /// A step that asked for samples was the last of so many.
  void moved(std::int64_t steps) {
    asked_after_ = steps;
    in_vain_ = 0;
  }

 private:
  std::int64_t asked_after_ = 0;  ///< so many steps, last; or samples were
  int in_vain_ = 0;               ///< after as many steps that asked for no samples
  bool told_ = false;
};

}  // namespace tutti
