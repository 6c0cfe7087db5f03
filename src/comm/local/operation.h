#pragma once

// One collective, as one member asks for it.
//
// Threads: plain data, and what is on its way belongs to the thread that moves the operation.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/coming_input.h"
#include "job/wire/rank_set.h"
#include "tutti/dtype.h"

namespace tutti {

enum class OperationKind : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
  scatter,
  all_to_all,
  message,  ///< a broadcast between two
  barrier
};
std::string_view name_of(OperationKind kind) noexcept;
constexpr bool reduces(OperationKind kind) noexcept {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter;
}
/// Only the root gives, only the root takes.
constexpr bool is_from_root(OperationKind kind) noexcept {
  return kind == OperationKind::broadcast || kind == OperationKind::scatter ||
         kind == OperationKind::message;
}
constexpr bool is_to_root(OperationKind kind) noexcept {
  return kind == OperationKind::reduce || kind == OperationKind::gather;
}
/// What each giver has as `in` is a part for each member, and not the same data for all.
constexpr bool gives_parts(OperationKind kind) noexcept {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::scatter ||
         kind == OperationKind::all_to_all;
}

/// One call of one member, its arguments checked. `counts`, `taken`, `layout` and `label`
/// need to live during start() only.
struct Operation {
  OperationKind kind = OperationKind::barrier;
  Reduction reduction = Reduction::sum;
  ConstView in;              ///< what this member gives; for broadcast the same memory as `out`
  View out;                  ///< where the result goes
  bool is_variable = false;  ///< the members' parts have sizes of their own:
  /// Elements of each member's part: the same on all members, but for all_to_all, where it says
  /// what this one gives to each, and `taken` what it takes from each.
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> taken;
  int root = 0;                          ///< rank in the group
  std::span<const std::int64_t> layout;  ///< sizes, then strides; empty where there are none
  std::string_view label;
  /// The longest time of each wait of the operation; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline;
  /// Makes progress while the thread that started it waits for something else of the job.
  bool in_background = false;
  /// Until it has come, others do not hear of the call; null: `in` is there.
  std::shared_ptr<ComingInput> input;
  /// The program's memory, on a device, of which `in` and `out` are the host's copy.
  ConstView original;
};

/// Throws when a member that has not done its part is known not to do it any more. `missing` gives
/// the job ranks that have not, as of when it is called.
using PartnerCheck = std::function<void(const std::function<RankSet()>& missing)>;

}  // namespace tutti
