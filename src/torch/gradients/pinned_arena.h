#pragma once

// A worker's slots of the shared arena as places to which a device copies gradients, and from which
// it takes sums, without the host moving a byte. A slot is pinned when a gradient is to come to it
// for the first time; where that is not to be had, copies go by way of others (host_copies.h).
//
// Threads: one at a time. Failure: none.

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "sync/step/step_exchange.h"
#include "torch/device/registered_memory.h"
#include "torch/model/host_copies.h"
#include "tutti/group.h"

namespace tutti {

class PinnedArena {
 public:
  /// Keeps references.
  PinnedArena(HostCopies& host, StepExchange& exchange);
  /// Waits for copies.
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  /// Whether a device copies to that slot straight.
  bool has(int slot);
  /// Where this worker's sum of the parameter is; null: not in memory from which a device copies.
  std::byte* result(std::size_t parameter);

 private:
  HostCopies& host_;
  StepExchange& exchange_;
  SharedMemory arena_;
  bool is_offered_ = true;
  std::vector<std::unique_ptr<RegisteredMemory>> slots_;
};

}  // namespace tutti
