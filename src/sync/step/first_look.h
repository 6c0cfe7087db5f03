#pragma once

// Looks in the first steps for silent mistakes: workers that compute the same gradient, because all
// have the same data, and generators that were not seeded alike. Notes travel with what workers
// publish anyway: no worker waits for them, and no bit depends on them.
//
// Threads: those of the exchange that has it. Failure: none; rank 0 logs warnings: of gradients
// once, of torch's generator, which all models of the program share, once in a process.

#include <cstdint>
#include <span>
#include <string>

#include "sync/step/step_board.h"
#include "tutti/group.h"

namespace tutti {

class FirstLook {
 public:
  /// Keeps references.
  FirstLook(const Group& group, std::span<const StepBoard> boards, std::string name)
      : group_(group), boards_(boards), name_(std::move(name)) {}

  /// Starts to look, from the next step on.
  void start() { started_ = true; }
  /// Notes the seed of the program's generator and a digest of its state, before the first step is
  /// published.
  void generator(std::uint64_t seed, std::uint64_t state) const;
  void open(std::uint64_t step) {
    sum_ = 0;
    looks_ = started_ && group_.size() > 1 && step <= kSteps;
  }
  /// Notes a gradient of this worker's leaf k as backward gave it; of a row-sparse one, its values.
  void note(std::int64_t leaf, std::size_t parameter, const void* values, std::size_t bytes) {
    if (looks_) add(leaf, parameter, values, bytes);
  }
  /// Writes the notes, before the step is published.
  void publish() const;
  /// Compares the notes of all, once all have published. `number` is the step's number in texts.
  void compare(std::int64_t number);

 private:
  static constexpr std::uint64_t kSteps = 3;
  void add(std::int64_t leaf, std::size_t parameter, const void* values, std::size_t bytes);
  StepHeader& header(int rank) const { return boards_[static_cast<std::size_t>(rank)].header(); }

  const Group& group_;
  std::span<const StepBoard> boards_;
  std::string name_;
  bool started_ = false;
  bool looks_ = false;     ///< in the open step
  std::uint64_t sum_ = 0;  ///< digests of its gradients that are not zero everywhere
  bool same_data_said_ = false;
  bool generators_compared_ = false;
};

}  // namespace tutti
