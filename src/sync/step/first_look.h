#pragma once

// Looks in the first steps for silent mistakes: workers that compute the same gradient, because all
// have the same data, generators that were not seeded alike, and batches of unequal numbers of rows
// whose losses count alike. Notes travel with what workers publish anyway: no worker waits for
// them, and no bit depends on them.
//
// Threads: those of the exchange that has it. Failure: none; rank 0 logs warnings: of gradients and
// of rows once, of torch's generator, which all models of the program share, once in a process.

#include <cstdint>
#include <span>
#include <string>

#include "sync/nodes/step_board.h"
#include "tutti/group.h"

namespace tutti {

class FirstLook {
 public:
  /// Keeps references.
  FirstLook(const StepBoards& boards, std::string name)
      : group_(boards.memory().group()), boards_(boards), name_(std::move(name)) {}

  /// Starts to look, from the next step on.
  void start() { started_ = true; }
  /// Notes the seed of the program's generator and a digest of its state, before the first step is
  /// published.
  void generator(std::uint64_t seed, std::uint64_t state) const;
  void open(std::uint64_t step) {
    sum_ = rows_ = 0;
    const bool may_look = started_ && group_.size() > 1;
    looks_ = may_look && step <= kSteps;
    looks_at_rows_ = may_look && step <= kStepsOfRows;
  }
  /// Whether note() is of use in the open step.
  bool looks_at_gradients() const { return looks_; }
  /// Whether rows() is of use in the open step.
  bool looks_at_rows() const { return looks_at_rows_; }
  /// Notes how many rows this worker's loss is made of, which counts as any other. Where a worker
  /// notes none, nothing is compared.
  void rows(std::uint64_t rows) { rows_ = rows + 1; }
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
  static constexpr std::uint64_t kStepsOfRows = 1000;  ///< an epoch's last batch may be the shorter
  void compare_gradients(std::int64_t number);
  void compare_generators();
  void compare_rows(std::int64_t number);
  void add(std::int64_t leaf, std::size_t parameter, const void* values, std::size_t bytes);
  StepHeader& header(int rank) const { return boards_.of(rank).header(); }

  const Group& group_;
  const StepBoards& boards_;
  std::string name_;
  bool started_ = false;
  bool looks_ = false;  ///< in the open step
  bool looks_at_rows_ = false;
  std::uint64_t sum_ = 0;   ///< digests of its gradients that are not zero everywhere
  std::uint64_t rows_ = 0;  ///< and 1; 0: unknown
  bool same_data_said_ = false;
  bool rows_said_ = false;
  bool generators_compared_ = false;
};

}  // namespace tutti
