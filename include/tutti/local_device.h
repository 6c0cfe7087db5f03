#pragma once

// Which device (a GPU) a worker's model goes to.
//
// Threads: any. Failure: InvalidArgument where libtorch has no device here.

#include <torch/torch.h>

#include "tutti/job.h"

namespace tutti {

/// The visible device of this worker's number on its host, counted around: with two devices,
/// workers 0 and 2 of a host have the first. What is visible is the system's or the launcher's to
/// say (CUDA_VISIBLE_DEVICES).
torch::Device local_device(const Job& job);

}  // namespace tutti
