#pragma once

// How a step exchange ends for all of its workers: each has the reason on its board, and all agree
// on the last step that succeeded.
//
// Threads: that of the exchange. Failure: Mismatch, PeerLost and Timeout as told.

#include <cstdint>
#include <span>
#include <string>

#include "comm/group_state.h"
#include "sync/nodes/step_board.h"
#include "sync/step/exchange_options.h"
#include "tutti/group.h"

namespace tutti {

/// The steps of an exchange, counted from 1.
struct StepNumbers {
  std::uint64_t done = 0;  ///< steps that are over, successful or dropped
  std::uint64_t open = 0;  ///< the open step
  std::int64_t begin = 0;  ///< of the program: the number of step k is begin + k

  std::int64_t of(std::uint64_t step) const { return static_cast<std::int64_t>(step) + begin; }
};

class ExchangeEnding {
 public:
  /// Keeps references.
  ExchangeEnding(const StepBoards& boards, const ExchangeOptions& options,
                 const StepNumbers& numbers)
      : group_(boards.memory().group()), boards_(boards), options_(options), numbers_(numbers) {}

  /// Throws what ended the exchange, if it is over on this worker.
  void require_running() const;
  /// It is over on this worker.
  bool is_over() const;
  /// That worker has ended, or has left.
  bool has_left(int rank) const;
  /// Throws where that worker does not take part in this step, nor in later ones.
  void check(int rank, std::uint64_t step) const;
  /// Throws where the exchange has ended before the open step has succeeded.
  void check_fate() const;
  /// The exchange has ended, and this step succeeded before.
  bool has_succeeded(std::uint64_t step) const;
  /// Tells the others, unless this worker has done so. False: nothing was told.
  bool end(EndKind kind, int culprit, const std::string& text) noexcept;

 private:
  StepHeader& header(int rank) const { return boards_.of(rank).header(); }
  bool has_begun() const;
  /// The last step that succeeded: once the exchange has ended, the same on all workers.
  std::uint64_t last_success() const;

  const Group& group_;
  const StepBoards& boards_;
  const ExchangeOptions& options_;
  const StepNumbers& numbers_;
};

}  // namespace tutti
