#pragma once

// Facts about the shards of a step besides their gradients: sections for each worker, written by
// their owner before the step is published, read by all until it is complete.
//
// Threads: one. Failure: OutOfMemory when there is no memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sync/nodes/logical_workers.h"
#include "sync/nodes/step_memory.h"
#include "sync/plan/plan.h"

namespace tutti {

/// Facts about some gradients of a worker's shards.
struct GradientFacts {
  /// No element of a sum of them, weighted, is larger.
  double bound = 0;
  /// First shard with one that is not finite, and the first such parameter of it; −1: none.
  std::int64_t bad_shard = -1;
  std::int64_t bad_parameter = -1;

  /// Notes that the parameter's gradient in the shard is not finite. Shards come in order.
  void note_bad(std::int64_t shard, std::int64_t parameter);
};

constexpr std::array<std::int64_t, kMaxLogicalWorkers> none_ran() {
  std::array<std::int64_t, kMaxLogicalWorkers> none{};
  none.fill(-1);
  return none;
}

struct ShardHeader {
  GradientFacts all = {};  ///< of parameters that all workers share …
  /// … of the parameters that each logical worker has for itself.
  std::array<GradientFacts, kMaxLogicalWorkers> own = {};
  std::int64_t ran = 0;         ///< shards with a weight above 0
  std::int64_t first_ran = -1;  ///< the first of them; −1: none
  /// … of each logical worker's.
  std::array<std::int64_t, kMaxLogicalWorkers> own_first_ran = none_ran();
  std::int64_t asked = 0;      ///< shards that asked for indices
  std::int64_t unasked = 0;    ///< others, which had no data before its program was called
  std::int64_t in_halves = 0;  ///< its program calls the halves of the step one by one
  std::uint64_t notes = 0;     ///< bytes
};

/// The error text where a gradient is not finite; else "".
std::string refusal_of(const GradientFacts& facts, const Plan& plan);
/// Whether a sum of these gradients, or its quotient, could be beyond the range of its type. With a
/// bound far below, roundings on the way do not matter.
bool may_overflow(const GradientFacts& facts, double divisor);

class ShardBoard {
 public:
  /// Collective.
  explicit ShardBoard(StepMemory& memory);

  ShardHeader& mine() { return parts_.mine().header.front(); }
  const ShardHeader& of(int rank) const { return parts_.of(rank).header.front(); }
  int size() const { return static_cast<int>(parts_.size()); }
  /// Sends this worker's header and notes to other hosts, ahead of the step's being published.
  void send();
  /// The facts of all workers together, once the step is published.
  GradientFacts facts() const;
  GradientFacts facts_of(std::size_t logical) const;

  /// This worker's room for notes: bytes that upper layers define. The writer puts their number
  /// into its header.
  std::span<std::byte> notes_area() { return parts_.mine().notes; }
  std::span<const std::byte> notes_of(int rank) const {
    return parts_.of(rank).notes.first(of(rank).notes);
  }

 private:
  struct Part {
    explicit Part(Sections& at);
    Section<ShardHeader> header;
    Section<std::byte> notes;
  };
  template <class Pick>
  GradientFacts reduced(const Pick& pick) const;

  WorkerParts<Part> parts_;
};

}  // namespace tutti
