#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "common/median.h"
#include "device_option.h"
#include "gpu/parts.h"
#include "gpu/seconds.h"
#include "step/models.h"
#include "tutti/tutti.h"

namespace bench::gpu {
namespace {

tutti::TrainerOptions options_of(const Options& options) {
  return {.shards = options.micro_batches, .seed = options.seed};
}

/// Bytes per second that so many threads of the host read and write together, of memory that no
/// cache holds.
double host_rate(int threads) {
  constexpr std::size_t kBytes = std::size_t{1} << 26;  // of each thread
  std::vector<double> seconds;
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(kBytes));
  auto to = from;
  for (int round = 0; round < 6; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::jthread> all;
    for (std::size_t t = 0; t < from.size(); ++t) {
      all.emplace_back([&, t] { std::memcpy(to[t].data(), from[t].data(), kBytes); });
    }
    all.clear();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 2.0 * kBytes * threads / median(seconds);
}

/// The most that libtorch's allocator has given beyond what was there at reset(); 0 where it does
/// not count.
class PeakMemory {
 public:
  explicit PeakMemory(torch::Device device) : device_(device) {
    if (device.is_cpu()) return;
    counts_ = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  }
  void reset() {
    if (counts_ == nullptr) return;
    counts_->resetPeakStats(device_.index());
    before_ = allocated().current;
  }
  std::int64_t bytes() const { return counts_ == nullptr ? 0 : allocated().peak - before_; }

 private:
  c10::CachingAllocator::Stat allocated() const {
    return counts_->getDeviceStats(device_.index()).allocated_bytes[0];
  }
  torch::Device device_;
  c10::DeviceAllocator* counts_ = nullptr;
  std::int64_t before_ = 0;
};

}  // namespace

void trainer(const Options& options) {
  const auto job = tutti::Job::join();
  const auto device = device_of(job, options.device);
  const auto task = make_task(options.model, options.times);
  task.model->to(device);
  tutti::Trainer trainer(job, *task.model, tutti::Adam{.lr = kLearningRate}, options_of(options));
  std::int64_t step =
      options.folder.empty() || !options.resumes ? 0 : trainer.load(options.folder).value_or(0);
  const auto last = options.folder.empty() || options.resumes ? options.steps : options.steps / 2;
  std::size_t device_bytes = 0;
  for (; step < last; ++step) {
    const auto result = trainer.step([&](tutti::Shard& shard) {
      return shard.loss(task.loss(step * options.micro_batches + shard.index()));
    });
    device_bytes = result.report.device_bytes;
  }
  if (last < options.steps) trainer.save(options.folder);
  tell("exact", {{"model", "trainer " + options.model},
                 {"workers", job.size()},
                 {"rank", job.rank()},
                 {"seed", options.seed},
                 {"device", device.str()},
                 {"half", last < options.steps},
                 {"resumed", options.resumes},
                 {"device_bytes", device_bytes},
                 {"sha256", tutti::parameters_sha256(*task.model)}});
}

void trainer_times(const Options& options) {
  at::set_num_interop_threads(options.threads);
  const auto job = tutti::Job::join();
  const auto device = device_of(job, options.device);
  const auto plain = make_task(options.model, options.times);
  plain.model->to(device);
  std::size_t bytes = 0;
  for (const auto& parameter : plain.model->parameters()) bytes += parameter.nbytes();
  const auto [begin, end] = tutti::share_of(options.micro_batches, job);
  const auto backwards = [&, begin = begin, end = end] {
    for (auto m = begin; m < end; ++m) plain.loss(m).backward();
  };
  const auto clear = [&] { plain.model->zero_grad(); };
  const auto by_adam = make_update("adam", *plain.model);
  const auto by_fused = make_update("fused", *plain.model);
  PeakMemory memory(device);
  memory.reset();
  seconds_of(device, [&] {
    backwards();
    by_adam();
  });
  const auto peak_alone = memory.bytes();
  const auto task = make_task(options.model, options.times);
  task.model->to(device);
  tutti::Trainer trainer(job, *task.model, tutti::Adam{.lr = kLearningRate}, options_of(options));
  tutti::StepResult last;
  std::vector<double> bare, adam, fused, with, waits;
  for (int round = 0; round < options.rounds; ++round) {
    const auto timed = [&](std::vector<double>& to, const std::function<void()>& call) {
      trainer.group().barrier();
      const auto seconds = seconds_of(device, call);
      if (round >= kWarmUp) to.push_back(seconds);
    };
    timed(bare, backwards);
    clear();
    timed(adam, [&] {
      backwards();
      by_adam();
    });
    timed(fused, [&] {
      backwards();
      by_fused();
    });
    memory.reset();
    timed(with, [&] {
      last =
          trainer.step([&](tutti::Shard& shard) { return shard.loss(task.loss(shard.index())); });
    });
    if (round >= kWarmUp) waits.push_back(last.report.device_wait_seconds);
  }
  const auto peak = memory.bytes();
  trainer.group().barrier();
  if (job.rank() != 0) return;
  const double rate = host_rate(options.threads);
  const double exposed = median(with) - median(bare);
  // The rule reads and writes 7 floats for each of a gradient's; a worker has its part of them.
  const double bound = 7.0 * static_cast<double>(bytes) / job.size() / rate;
  tell("trainer_time", {{"model", options.model},
                        {"times", options.times},
                        {"workers", job.size()},
                        {"shards", options.micro_batches},
                        {"threads", options.threads},
                        {"device", device.str()},
                        {"rounds", with.size()},
                        {"gradient_bytes", bytes},
                        {"backwards_ms", 1e3 * median(bare)},
                        {"adam_ms", 1e3 * median(adam)},
                        {"fused_ms", 1e3 * median(fused)},
                        {"tutti_ms", 1e3 * median(with)},
                        {"exposed_ms", 1e3 * exposed},
                        {"bound_ms", 1e3 * bound},
                        {"exposed_by_bound", exposed / bound},
                        {"host_gb_per_s", 1e-9 * rate},
                        {"device_wait_ms", 1e3 * median(waits)},
                        {"device_bytes", last.report.device_bytes},
                        {"peak_bytes", peak},
                        {"peak_by_hand_bytes", peak_alone}});
}

}  // namespace bench::gpu
