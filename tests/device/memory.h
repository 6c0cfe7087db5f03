#pragma once

// The test device's memory, and host memory that it knows (pinned).
//
// The pages of the device are mapped twice: without access at the addresses that tensors have, and
// for kernels at others. Blocks go as in CUDA's caching allocator: one that is freed belongs at
// once to the next allocation on its own stream, since work there comes after what used it; other
// streams that use it must have been recorded, and then it returns when they have passed that
// point.

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace tutti::test_device {

void open_memory();

/// Where kernels find what tensors have at this address.
void* kernel_address(const void* at);

/// On the calling thread's current stream of the device.
c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device);
/// The block is not reused before what has been pushed to `stream` when it is freed.
void keep_for(const c10::DataPtr& data, const c10::Stream& stream);
c10::Allocator& device_allocator();

/// Whether all of it is.
bool is_pinned(const void* begin, std::size_t bytes);
c10::Allocator& pinned_allocator();

}  // namespace tutti::test_device
