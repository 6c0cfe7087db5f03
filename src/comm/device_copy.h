#pragma once

// Collectives on the host's copy of memory of a device: how those who copy tell those who add up.
//
// Threads and failure: as Group.

#include <functional>
#include <memory>

#include "base/coming_input.h"
#include "tutti/group.h"

namespace tutti {

struct DeviceCopy {
  std::shared_ptr<ComingInput> input;
  ConstView original;          ///< on the device: no other call may touch it until Work::wait()
  std::function<void()> give;  ///< asked by Work::wait() once the result is in the copy
};
/// `inout` is the copy.
Work start_all_reduce(const Group& group, View inout, Reduction reduction,
                      const CollectiveOptions& options, DeviceCopy copy);

/// InvalidArgument where a call that Work::wait() was not called for has this memory of a device.
void require_apart(const Group& group, const ConstView& original);

}  // namespace tutti
