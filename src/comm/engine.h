#pragma once

// What moves bytes for a group. One engine object belongs to one group. Capabilities are asked
// once; nothing throws by default. The order in which values are folded comes with the operation.
//
// Threads: one at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/dtype.h"
#include "tutti/group.h"

namespace tutti {

struct Capabilities {
  bool views_peers =
      false;  ///< members see each other's memory: allocate() and board-based waits work
  bool native_all_reduce = false;  ///< has a sum of its own that does not follow the canonical tree
  bool failure_notice = false;     ///< tells of a peer's death without a time-out
  int lanes = 1;                   ///< independent operations that may run at the same time
};

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
  /// How long each wait for it may last; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline;
  /// Makes progress while the thread that started it waits for something else of the job.
  bool in_background = false;
};

/// Shared memory that all members ask for alike.
struct MemoryRequest {
  std::size_t bytes = 0;   ///< of a block
  std::size_t needed = 0;  ///< bytes that each member is going to touch
  std::string_view what;
  bool common = false;  ///< one block for all instead of one for each
};

/// Throws when a member that has not done its part is known not to do it any more. `missing` says,
/// evaluated when it is called, bits of the job ranks that have not.
using PartnerCheck = std::function<void(const std::function<std::uint64_t()>& missing)>;

class Engine {
 public:
  virtual ~Engine() = default;
  virtual Capabilities capabilities() const = 0;
  /// See Group::allocate and Group::allocate_common.
  virtual SharedMemory allocate(const MemoryRequest& request) = 0;
  /// Returns the operation's sequence number, from 1. Operations complete in this order.
  virtual std::uint64_t start(const Operation& operation, int lane) = 0;
  /// Makes what progress it can without waiting; true when the operation is complete.
  virtual bool test(std::uint64_t sequence) = 0;
  virtual void wait(std::uint64_t sequence) = 0;
  /// Slow waits of operations also ask this one, until an empty one takes its place: somebody else
  /// knows more of the members' lives than the group does. What it throws ends the group.
  virtual void ask_also(PartnerCheck check) = 0;
  /// Ends the group: pending and later calls of all members fail with this text.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace tutti
