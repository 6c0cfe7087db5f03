#include "device_option.h"
#include "gpu/parts.h"
#include "step/models.h"
#include "tutti/tutti.h"

namespace bench::gpu {

void exact(const Options& options) {
  const auto job = tutti::Job::join();
  const auto device = device_of(job, options.device);
  const auto task = make_task(options.model, options.times);
  task.model->to(device);
  tutti::DataParallel parallel(job, *task.model);
  const auto update = make_update("adam", *task.model);
  const auto [begin, end] = tutti::share_of(options.micro_batches, job);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    auto scope = parallel.accumulate({.micro_batches = end - begin, .seed = options.seed});
    for (auto m = begin; m < end; ++m) {
      scope.micro_batch(1, [&] { return task.loss(step * options.micro_batches + m); });
    }
    scope.finish();
    update();
  }
  std::size_t bytes = 0;
  for (const auto& parameter : task.model->parameters()) bytes += parameter.nbytes();
  tell("exact", {{"model", options.model},
                 {"workers", job.size()},
                 {"rank", job.rank()},
                 {"seed", options.seed},
                 {"device", device.str()},
                 {"bytes", bytes},
                 {"device_bytes", parallel.report().device_bytes},
                 {"sha256", tutti::parameters_sha256(*task.model)}});
}

}  // namespace bench::gpu
