#include "tutti/local_device.h"

#include <ATen/DeviceAccelerator.h>
#include <algorithm>

#include "job/job_state.h"
#include "tutti/error.h"

namespace tutti {

torch::Device local_device(const Job& job) {
  const auto type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) {
    throw InvalidArgument(
        "no device: libtorch sees none. A program that is linked with the libtorch of the CPU "
        "loads that of its devices before it starts (LD_PRELOAD=…/torch/lib/libtorch_cuda.so), "
        "which needs their driver");
  }
  const auto ranks = job.state()->hosts().neighbours(job.rank()).ranks();
  const auto number = std::ranges::find(ranks, job.rank()) - ranks.begin();
  return {*type, static_cast<c10::DeviceIndex>(number % count)};
}

}  // namespace tutti
