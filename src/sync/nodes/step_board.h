#pragma once

// What a worker tells the others about a step, in shared memory: sections for each worker, written
// by their owner alone. Plain fields are published by a release store to one of the step counters
// and read after an acquire load of it; they are not touched again before every worker is through
// with the step.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "job/wire/board.h"
#include "kernels/fold_program.h"
#include "sync/nodes/step_memory.h"

namespace tutti {

/// Most nodes a worker may hold, and most slots of its arena.
inline constexpr int kMaxSlots = 64;
/// Entry of a slot table: the node has no gradient for the parameter.
inline constexpr std::uint8_t kAbsent = 0xff;

/// Values that FirstLook compares.
struct FirstLookNotes {
  std::uint64_t gradient = 0;         ///< digest of the worker's own; 0: it has none but zeros
  std::uint64_t generator_seed = 0;   ///< of the program's random numbers, at the start
  std::uint64_t generator_state = 0;  ///< digest; 0: not known
  std::uint64_t rows = 0;             ///< of its loss, and 1; 0: not known
};

/// A worker's part in a step.
enum class StepMode : std::uint32_t {
  one_backward,   ///< one leaf, at index rank: buckets may leave early
  micro_batches,  ///< a contiguous range of leaves
  no_gradient,    ///< nothing of its own: fits either
};

/// The reason why an exchange has ended.
enum class EndKind : std::uint32_t { running, mismatch, timeout, lost };

struct StepHeader {
  // Counters of steps: the last step in which the owner has reached a point.
  alignas(kCacheLine) std::atomic<std::uint64_t> opened{0};  ///< its number of leaves is written
  std::atomic<std::uint64_t> counted{0};                     ///< its leaves have ended
  std::atomic<std::uint64_t> published{0};                   ///< all nodes and tables are written
  alignas(kCacheLine) std::atomic<std::uint64_t> folded{0};  ///< all its slices are folded
  std::atomic<std::uint64_t> barrier{0};                     ///< rounds of StepExchange::barrier
  std::atomic<std::uint64_t> told{0};  ///< what others may read during its leaves is written
  std::atomic<std::uint64_t> left{0};  ///< it touches no memory of the step any more
  alignas(kCacheLine) std::atomic<std::uint64_t> failed{0};  ///< a failure is reported
  std::atomic<std::uint64_t> closed{0};   ///< 1 + last step taken part in; 0 while open
  std::atomic<std::uint32_t> ended{0};    ///< EndKind: the exchange as a whole is over
  std::atomic<std::int32_t> culprit{-1};  ///< job rank, where one is known
  /// The outcome of the exchange, once a worker has `ended`. Only rank 0's is used; any worker
  /// writes it.
  std::atomic<std::uint64_t> fate{kRunning};
  static constexpr std::uint64_t kRunning = 0;
  static constexpr std::uint64_t kUndecided = 1;
  static constexpr std::uint64_t kDecided = 2;  ///< plus the last step that succeeded
  /// 1 + the last step of the owner, which has ended its part and left digests:
  /// ModelAgreement::part().
  std::atomic<std::uint64_t> parted{0};
  /// A worker has reported that models differ. Only rank 0's is used; any worker writes it.
  std::atomic<std::uint32_t> parting_said{0};
  SharedText<512> failure;  ///< why `failed`
  SharedText<1024> reason;  ///< why `ended`

  // Published with `opened`.
  StepMode mode = StepMode::no_gradient;
  std::int64_t declared = 0;   ///< leaves of this worker; −1 while it does not know
  double weight = 0;           ///< of the one leaf, where the mode is not `micro_batches`
  std::uint32_t drained = 0;   ///< the owner has no more data
  std::uint64_t schedule = 0;  ///< hash of the bucket schedule in use

  // Published with `published`.
  std::int64_t arrived = 0;     ///< ns, Clock: when it published
  std::uint32_t has_order = 0;  ///< order() is filled in
  FirstLookNotes first_look;    ///< in the first steps

  // Published with `counted`, or with the first bucket that is complete in the last leaf.
  std::int64_t leaves = 0;

  // Published with `published`, or with that bucket.
  std::int32_t node_count = 0;
  struct Node {
    Block block;  ///< counted from the owner's first leaf
    double weight = 0;
  };
  Node nodes[kMaxSlots];
};

/// A worker's sections, for a plan with `parameters` parameters and `buffers` buffers of a model
/// with `modules` modules.
class StepBoard {
 public:
  StepBoard(Sections& at, std::size_t parameters, std::size_t buffers, std::size_t modules = 0)
      : header_(at),
        ready_(at, parameters),
        folded_(at, parameters),
        digests_(at, parameters + buffers),
        order_(at, parameters),
        weights_(at, kMaxSlots, parameters),
        slots_(at, kMaxSlots + 1, parameters),
        modes_(at, modules) {}

  StepHeader& header() const { return header_.front(); }
  /// Last step in which bucket b is complete on this worker; at most one bucket per parameter.
  std::atomic<std::uint64_t>& bucket_ready(std::size_t b) const { return ready_[b]; }
  /// Last step in which the owner has folded its share of bucket b, where others ask for that.
  std::atomic<std::uint64_t>& bucket_folded(std::size_t b) const { return folded_[b]; }
  /// slot_table(k)[p]: slot that holds node k's gradient of parameter p, or kAbsent.
  std::uint8_t* slot_table(int node) const { return slots_[static_cast<std::size_t>(node)]; }
  /// sum_slots()[p]: slot in which the owner keeps what it folds of parameter p, where it does so.
  std::uint8_t* sum_slots() const { return slots_[kMaxSlots]; }
  /// weights(k)[p]: sum of the weights of node k's leaves that wrote parameter p.
  double* weights(int node) const { return weights_[static_cast<std::size_t>(node)]; }
  /// Digests of parameters, then of buffers.
  std::span<std::uint64_t> digests() const { return digests_; }
  /// For each module 1 in train(), 0 in eval().
  std::span<std::uint8_t> modes() const { return modes_; }
  /// Parameters in the order in which they became ready in the first step. Only rank 0's is used.
  std::span<std::uint32_t> order() const { return order_; }

 private:
  Section<StepHeader> header_;
  Section<std::atomic<std::uint64_t>> ready_;
  Section<std::atomic<std::uint64_t>> folded_;
  Section<std::uint64_t> digests_;
  Section<std::uint32_t> order_;
  SectionRows<double> weights_;
  SectionRows<std::uint8_t> slots_;
  Section<std::uint8_t> modes_;
};
using StepBoards = WorkerParts<StepBoard>;

}  // namespace tutti
