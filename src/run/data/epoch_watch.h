#pragma once

// Notices a loop over epochs that will not end, because its steps ask for no samples.
//
// Threads: one. Failure: none.

#include <cstdint>

namespace tutti {

class EpochWatch {
 public:
  /// Questions in a row, each after another step without samples, until asked() returns true.
  static constexpr int kPatience = 100;

  /// The program asks for the epoch after `steps` steps. Returns true once, where the loop may not
  /// end.
  bool asked(std::int64_t steps) {
    if (asked_after_ == steps) return false;
    asked_after_ = steps;
    return ++in_vain_ == kPatience && !told_ && (told_ = true);
  }
  /// Notes that the last of `steps` steps asked for samples.
  void moved(std::int64_t steps) {
    asked_after_ = steps;
    in_vain_ = 0;
  }

 private:
  std::int64_t asked_after_ =
      0;             ///< number of steps at the last question, or at the last step with samples
  int in_vain_ = 0;  ///< questions since then, each after another step
  bool told_ = false;
};

}  // namespace tutti
