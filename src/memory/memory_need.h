#pragma once

// Is there room? Shared memory is not refused by the system when it does not fit: the process that
// touches a page too many is killed. So the need of all workers of a host is compared with what the
// machine and every cgroup above still allow, before anything is allocated. What each worker has
// for itself is compared with the limits of its process too.
//
// Threads: pure functions. Failure: none; a refusal is a text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/system.h"

namespace tutti {

/// The memory that the workers of one host are about to use together.
struct MemoryNeed {
  std::uint64_t bytes_per_worker = 0;
  int workers = 1;
  std::string_view what;    ///< "gradients of 12 parameters": begins the refusal
  bool is_private = false;  ///< memory of each worker's own, not shared
  /// bytes_per_worker × workers, or the largest number where that does not fit in 64 bits.
  std::uint64_t total() const noexcept;
};

/// Empty if `need` fits every bound; else the figures: the need, of one worker and
/// of all, and the bound that leaves the least, its owner and what it still allows.
std::string refuse_memory(const System& system, const MemoryNeed& need);

/// "1.5 GiB", "640 KiB", "17 bytes".
std::string format_bytes(std::uint64_t bytes);

}  // namespace tutti
