#pragma once

// What gpu_check is told, and the parts of it. Each writes facts to standard output, a line of JSON
// for each.

#include <torch/torch.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace bench::gpu {

struct Options {
  std::string device = "cuda";
  std::string model = "mlp25m";    ///< of bench::make_task()
  int times = 1;                   ///< what one batch is of make_task()'s
  std::int64_t steps = 5;          ///< of a training
  std::int64_t micro_batches = 6;  ///< of a step, or shards, over all workers
  std::uint64_t seed = 1;          ///< of the micro-batches' dropout
  int runs = 20;                   ///< of each fault
  std::int64_t width = 2048;       ///< of the faults' model
  bool fast = false;               ///< NCCL adds up in the times
  int threads = 1;                 ///< of the host that update, of each worker
  std::string folder = {};         ///< of a Trainer's checkpoint at half of its steps; "": none
  bool resumes = false;            ///< from it
  int rounds = 14;                 ///< of the times, of which the first two do not count
};

/// Prints {"part": …, …} as one line.
void tell(const char* part, const nlohmann::ordered_json& facts);

/// Trains a model by a DataParallel and prints the digest of its parameters on every worker: equal
/// for any number of workers, as the micro-batches of a step are.
void exact(const Options& options);
/// Takes gradients from the device as a DataParallel does, leaves one wait out at a time, and
/// prints in how many runs that gave other bytes. One worker.
void faults(const Options& options);
/// Trains it by a Trainer and prints the same, or the first or the second half of that.
void trainer(const Options& options);
/// Steps of a Trainer beside gradients that are accumulated by hand and updated on the device.
void trainer_times(const Options& options);
/// Steps with a DataParallel beside those without any synchronisation, and copies of as many bytes.
void times(const Options& options);

}  // namespace bench::gpu
