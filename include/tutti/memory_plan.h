#pragma once

// Which layers of a sequence run again in backward, so that a training step stays within so many
// bytes at the least cost in time. Plain data: RecomputeSequential measures, and does what is
// planned.
//
// Bytes are those of what a step allocates from the beginning of forward to the end of backward, at
// its peak, parameters' gradients left aside once they are complete. Layers lie one behind another:
// the result of one is the input of the next.
//
// Threads: values; safe anywhere. Failure: InvalidArgument.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// What a layer takes when it runs plainly.
struct LayerMemory {
  std::string name = {};
  /// Layers of the program: the first, and those behind it that change in place what they are
  /// given, which are one with it.
  std::int64_t layers = 1;
  std::uint64_t inside = 0;  ///< kept until its backward, besides input and result
  std::uint64_t result = 0;  ///< 0: it lies in the input's memory
  bool keeps_input = true;   ///< until its backward
  bool keeps_result = false;
  std::uint64_t forward_peak = 0;   ///< while it runs, beyond what was there before
  std::uint64_t backward_peak = 0;  ///< … and is kept, and the result's gradient
  std::uint64_t gradients = 0;      ///< of its parameters
  std::uint64_t largest_gradient = 0;
  double forward_ms = 0;
};

/// Layers [first, last) that run plainly, or are one segment that runs again. In a MemoryPlan they
/// count its entries.
struct MemorySegment {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool again = false;
  bool operator==(const MemorySegment&) const = default;
};

/// How much memory a step may take: a share of what is between the least peak, 0, and that of the
/// plain run, 1; or bytes.
struct MemoryBudget {
  std::optional<double> share = {};
  std::uint64_t bytes = 0;
  static MemoryBudget of_share(double share) { return {.share = share}; }
  static MemoryBudget of_bytes(std::uint64_t bytes) { return {.bytes = bytes}; }
};

/// A plan by other budgets: the peak, and the time of the layers that run again.
struct MemoryPoint {
  std::uint64_t peak = 0;
  double added_ms = 0;
};

struct MemoryPlan {
  std::vector<LayerMemory> layers = {};
  std::vector<MemorySegment> segments = {};
  std::uint64_t budget = 0;
  std::uint64_t peak = 0;        ///< as computed from the layers
  std::uint64_t plain_peak = 0;  ///< where nothing runs again
  std::uint64_t least_peak = 0;  ///< of all plans
  double forward_ms = 0;         ///< of all layers
  double added_ms = 0;           ///< of those that run again
  std::vector<MemoryPoint> curve = {};
  std::optional<std::uint64_t> measured_peak = {};  ///< of a step with these segments

  /// A table of the layers and what becomes of each, and of what it costs.
  std::string text() const;
};

/// The peak of a step of `layers` in these segments, which follow one another from the first layer
/// to the last.
std::uint64_t peak_of(std::span<const LayerMemory> layers, std::span<const MemorySegment> segments);

/// Of all ways to cut the layers into segments, the one with the least added time whose peak is at
/// most `budget` bytes. Among equals, the lower peak. InvalidArgument, with the least that can be
/// had, where there is none.
MemoryPlan plan_memory(std::vector<LayerMemory> layers, std::uint64_t budget);

/// The bytes of a budget of `share`: 0 is the least peak that a plan can have, 1 the peak of the
/// plain run, and what is between them in proportion. InvalidArgument outside of [0, 1].
std::uint64_t budget_of_share(std::span<const LayerMemory> layers, double share);

}  // namespace tutti
