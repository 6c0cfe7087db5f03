#pragma once

// Finds workers whose models have drifted apart: in the first steps, and then in every n-th, each
// publishes digests of its parameters and buffers on its board, and all compare them.
//
// Threads: those of the exchange that has it. Failure: Mismatch, the same on every worker, naming
// the first parameter or buffer that differs.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sync/nodes/step_board.h"
#include "sync/plan/plan.h"
#include "tutti/group.h"

namespace tutti {

/// The model's own memory, dense, in the order of the plan.
struct ModelMemory {
  /// None where another worker has the same ones and compares them; null where workers may differ.
  std::vector<const void*> parameters;
  std::vector<void*> buffers;
  std::vector<std::uint8_t> modes = {};  ///< of each module: 1 in train(), 0 in eval()
};

/// Whether `step` is 1, 2, 4 … 64 or a multiple of `every`. Never with `every` 0.
bool is_checked_step(std::uint64_t step, std::int64_t every);

class DigestCheck {
 public:
  /// Checks in the steps of is_checked_step(). Keeps references.
  DigestCheck(const Plan& plan, const StepBoards& boards, std::int64_t every)
      : plan_(plan), group_(boards.memory().group()), boards_(boards), every_(every) {}

  bool compares() const { return every_ > 0 && group_.size() > 1; }
  bool due(std::uint64_t step) const { return compares() && is_checked_step(step, every_); }
  /// Writes digests of the current parameters and of the noted buffers, before the step is
  /// published.
  void publish(const ModelMemory& model) const;
  /// Throws Mismatch where workers differ, once all have published. `step` begins the error.
  void compare(std::string_view step) const;
  /// The first one that differs among these ranks, ascending, all of which have published:
  /// `parameter "0.weight" of rank 1 differs from that of rank 0`.
  std::optional<std::string> difference(std::span<const int> ranks) const;
  /// Notes the buffers' digests at the end of a step, where they are known to be equal.
  void note_buffers(const ModelMemory& model);

 private:
  const Plan& plan_;
  const Group& group_;
  const StepBoards& boards_;
  std::int64_t every_;
  std::vector<std::uint64_t> buffers_;
};

}  // namespace tutti
