#include <cstdlib>

#include "common/median.h"
#include "device_option.h"
#include "gpu/parts.h"
#include "gpu/seconds.h"
#include "step/models.h"
#include "tutti/tutti.h"

namespace bench::gpu {
namespace {

constexpr int kCopies = 10;

/// A model, its optimizer, and a batch of this worker's own.
class Trained {
 public:
  Trained(const Options& options, torch::Device device, int rank)
      : task_(make_task(options.model, options.times)), rank_(rank) {
    task_.model->to(device);
    update_ = make_update("adam", *task_.model);
  }
  torch::nn::Module& model() { return *task_.model; }
  void step() {
    task_.loss(rank_).backward();
    update_();
  }

 private:
  Task task_;
  int rank_;
  std::function<void()> update_;
};

/// Bytes per second of copies of as many bytes, one at a time, by pinned memory.
double copy_rate(torch::Device device, std::int64_t bytes, bool to_host) {
  const auto there = torch::zeros({bytes}, torch::dtype(torch::kUInt8).device(device));
  const auto here = torch::zeros({bytes}, torch::dtype(torch::kUInt8).pinned_memory(true));
  std::vector<double> seconds;
  for (int copy = 0; copy < kCopies; ++copy) {
    seconds.push_back(seconds_of(device, [&] {
      (to_host ? here : there).copy_(to_host ? there : here, /*non_blocking=*/true);
    }));
  }
  return static_cast<double>(bytes) / median(seconds);
}

}  // namespace

void times(const Options& options) {
  const auto job = tutti::Job::join();
  const auto device = device_of(job, options.device);
  Trained plain(options, device, job.rank());
  Trained together(options, device, job.rank());
  // NCCL takes several workers on one GPU for those of several hosts.
  if (options.fast) ::setenv("NCCL_HOSTID", std::to_string(job.rank()).c_str(), 1);
  tutti::DataParallel parallel(job, together.model(),
                               {.sum = options.fast ? tutti::Sum::fast : tutti::Sum::exact});
  std::vector<double> alone, with, waits;
  for (int round = 0; round < options.rounds; ++round) {
    parallel.group().barrier();
    const auto one = seconds_of(device, [&] { plain.step(); });
    parallel.group().barrier();
    const auto other = seconds_of(device, [&] { together.step(); });
    if (round < kWarmUp) continue;
    alone.push_back(one);
    with.push_back(other);
    waits.push_back(parallel.report().device_wait_seconds);
  }
  const auto bytes = static_cast<std::int64_t>(parallel.report().device_bytes);
  nlohmann::ordered_json facts{{"model", options.model},
                               {"times", options.times},
                               {"sum", options.fast ? "fast" : "exact"},
                               {"workers", job.size()},
                               {"device", device.str()},
                               {"rounds", alone.size()},
                               {"plain_ms", 1e3 * median(alone)},
                               {"tutti_ms", 1e3 * median(with)},
                               {"device_bytes", bytes},
                               {"device_wait_ms", 1e3 * median(waits)}};
  parallel.group().barrier();
  if (job.rank() != 0) return;
  if (bytes > 0) {  // as many to the host as from it, but for buffers
    const auto out = copy_rate(device, bytes / 2, true);
    const auto in = copy_rate(device, bytes / 2, false);
    const auto copies = static_cast<double>(bytes) / 2 * (1 / out + 1 / in);
    facts["to_host_gb_per_s"] = 1e-9 * out;
    facts["to_device_gb_per_s"] = 1e-9 * in;
    facts["copies_ms"] = 1e3 * copies;
    facts["not_hidden"] = (median(with) - median(alone)) / copies;
  }
  tell("time", facts);
}

}  // namespace bench::gpu
