#pragma once

// One collective, as one member asks for it.
//
// Threads: plain data.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "job/wire/rank_set.h"
#include "tutti/dtype.h"

namespace tutti {

enum class OperationKind : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier
};
std::string_view name_of(OperationKind kind) noexcept;

/// One call of one member, its arguments checked. `counts`, `layout` and `label` need to live
/// during start() only.
struct Operation {
  OperationKind kind = OperationKind::barrier;
  Reduction reduction = Reduction::sum;
  ConstView in;  ///< what this member gives; for broadcast the same memory as `out`
  View out;      ///< where the result goes; for reduce used by the root only
  std::span<const std::int64_t> counts;  ///< all_gather: elements per member; empty when all equal
  int root = 0;                          ///< reduce and broadcast: rank in the group
  std::span<const std::int64_t> layout;  ///< sizes, then strides; empty where there are none
  std::string_view label;
  /// The longest time of each wait of the operation; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline;
  /// Makes progress while the thread that started it waits for something else of the job.
  bool in_background = false;
};

/// Throws when a member that has not done its part is known not to do it any more. `missing` gives
/// the job ranks that have not, as of when it is called.
using PartnerCheck = std::function<void(const std::function<RankSet()>& missing)>;

}  // namespace tutti
