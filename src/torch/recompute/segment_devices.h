#pragma once

// The devices that a segment computes on.
//
// Threads: any. Failure: Unsupported.

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/tensors.h"

namespace tutti {

/// Unsupported unless all are dense, and on the CPU or on a device that libtorch computes on.
/// `what` they are, and the segment's name, are for the text.
void require_kind(const TensorList& tensors, const char* what, const std::string& name);

/// The devices of tensors that are not on the CPU.
std::vector<c10::Device> devices_of(const TensorList& tensors);

/// The one of `devices`, none of which is the CPU; none: there are none. Unsupported where there
/// are several: a thread of autograd's runs what is on a device, and what is the thread's, as the
/// weight of a loss, would be missing in another one.
std::optional<c10::Device> one_device(const std::vector<c10::Device>& devices,
                                      const std::string& name);

/// A backward on a device has threads beside the program's: of segments of both, which share
/// generators and buffers, one runs again while this lives. Those inside of it, which it waits for,
/// are its own, in whatever thread. Without a device nothing is locked.
class OneSegmentAtATime {
 public:
  OneSegmentAtATime();

 private:
  std::unique_lock<std::mutex> lock_;
  std::optional<c10::DebugInfoGuard> in_thread_;
};

/// Returns when autograd's thread of the device holds nothing any more of backwards that have
/// ended: a moment after backward() has returned it may hold their last node.
void pass_through_thread_of(c10::Device device);

}  // namespace tutti
