#pragma once

// All effects on the machine behind one interface: clock, memory files, who is alive. Tests delay,
// tear and kill through it; ThreadSystem lets ranks be threads of one process.
//
// Threads: all functions may be called from any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"

namespace tutti {

/// A bound of memory: its owner and the memory that it still allows.
struct MemoryBound {
  std::string owner;            ///< "machine", or the cgroup's path
  std::uint64_t limit = 0;      ///< bytes in all
  std::uint64_t available = 0;  ///< bytes that can still be had without swapping
};

class System {
 public:
  virtual ~System() = default;

  virtual Clock::time_point now() const = 0;

  /// An unnamed file of shared memory of exactly `bytes` bytes, zero-filled, sealed against
  /// resizing, owner-only, close-on-exec. Pages are not touched. `name` shows in /proc only.
  /// OutOfMemory where the system refuses it.
  virtual FileDescriptor create_memory(std::string_view name, std::size_t bytes) = 0;
  /// Maps the whole file, shared and writable, with huge pages where the system gives them.
  /// Unmapped when the last owner lets go. A file of another size is InvalidArgument;
  /// OutOfMemory where there is no room.
  virtual std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) = 0;

  /// A descriptor that turns readable when this worker has ended, to be passed to the others.
  virtual FileDescriptor life_line() = 0;

  /// Whether this worker has threads, beside the caller, that may come to use its job: all that
  /// helper_thread.h does not know.
  virtual bool has_other_threads() const = 0;

  /// Machine first, then every cgroup above this process that sets a limit.
  virtual std::vector<MemoryBound> memory_bounds() const = 0;
  /// Limits of this process alone, of what it maps and of what it has for itself.
  virtual std::vector<MemoryBound> own_memory_bounds() const = 0;

  /// Numbers of the processors this process may run on, ascending; at least one.
  virtual std::vector<int> allowed_processors() const = 0;
  /// The number of processors that this process may keep busy: all allowed ones, or a cgroup's
  /// quota; at least 1.
  virtual int processors() const = 0;
};

/// The real one.
std::shared_ptr<System> host_system();

}  // namespace tutti
