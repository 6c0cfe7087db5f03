#pragma once

// Training of each worker by itself, whose parameters are averaged from time to time (local SGD,
// block momentum, DiLoCo, partial update). The training loop, the model and the optimizer stay the
// program's own. averaging.h has the policies.
//
//   tutti::AveragedParallel parallel(job, *model, tutti::local_sgd(16));
//   …
//   optimizer.zero_grad();
//   loss.backward();                // this worker's alone
//   optimizer.step();
//   parallel.average_parameters();  // at the end of each step: what is due is averaged
//
// Threads: one at a time per object. Failure: Diverged on all workers where a value is not finite,
// InvalidArgument where this worker's model has changed (PeerFailed on the others): nothing was
// averaged, and the next call works. A mean that is not finite, or a policy that throws, is
// Mismatch; it, PeerLost and Timeout end this object. docs/errors.md has the whole list.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/averaging.h"
#include "tutti/codec.h"
#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/step_report.h"
#include "tutti/traffic.h"

namespace tutti {

struct AveragedParallelOptions {
  std::string name = "model";  ///< in errors and logs
  /// Buffers become rank 0's where a bucket is due; if false, only in sync_buffers().
  bool sync_buffers = true;
  /// Elements. Parameters of at most so many join a bucket, in registration order, until the bucket
  /// has more; larger ones are buckets of their own. Policies make buckets due. At least 1.
  std::int64_t fusion = kDefaultFusion;
  /// Parameters for which this returns true stay local: neither sent at the start nor averaged.
  std::function<bool(const std::string& name)> per_replica = {};
  /// The number of the first step, for policies and in texts: a program that resumes from files of
  /// its own gives report().step + 1 of where it stopped. At least 1.
  std::int64_t first_step = 1;
  /// The longest time that a wait takes; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline = {};
};

class ParallelAveraging;

class [[nodiscard]] AveragedParallel {
 public:
  /// Compares the plan (names, shapes, strides, dtypes, threads, policy) on all workers, then sends
  /// rank 0's parameters and buffers to all. Collective. `module` must outlive this object.
  /// InvalidArgument for a layer that is split over the workers, whose steps have to be one.
  [[nodiscard]] AveragedParallel(const Job& job, torch::nn::Module& module,
                                 AveragingPolicyPointer policy,
                                 const AveragedParallelOptions& options = {});
  /// The same over a group of workers, or over named parameters.
  [[nodiscard]] AveragedParallel(const Group& group, torch::nn::Module& module,
                                 AveragingPolicyPointer policy,
                                 const AveragedParallelOptions& options = {});
  [[nodiscard]] AveragedParallel(const Group& group,
                                 std::vector<std::pair<std::string, torch::Tensor>> parameters,
                                 AveragingPolicyPointer policy,
                                 const AveragedParallelOptions& options = {});
  /// A holder (torch::nn::Linear, TORCH_MODULE) is a pointer: pass the module itself, *model.
  template <class Contained>
  AveragedParallel(const Job&, const torch::nn::ModuleHolder<Contained>& pass_the_module_itself,
                   AveragingPolicyPointer, const AveragedParallelOptions& options = {}) = delete;
  /// Warns where parameters were never averaged.
  ~AveragedParallel();
  AveragedParallel(AveragedParallel&&) noexcept;
  AveragedParallel& operator=(AveragedParallel&&) = delete;

  /// The end of each of this worker's steps, after its optimizer's. Of buckets that are due,
  /// parameters that changed on some worker since they last were become the policy's value of their
  /// mean, the same bytes everywhere; the optimizer's state stays each worker's own. All workers
  /// call it equally often, and wait for each other where something is due; given the number of the
  /// `step`, one that was left out is InvalidArgument. A value that is not finite is Diverged on
  /// all that names parameter and rank.
  void average_parameters(std::optional<std::int64_t> step = {});
  /// Rank 0's buffers to all, now. Collective.
  void sync_buffers();

  /// Σ weight · value / Σ weight over the workers, added along the canonical tree over ranks in
  /// float64: as DataParallel::mean(), with its errors. Collective, between steps.
  double mean(double value, double weight = 1) const;
  torch::Tensor mean(const torch::Tensor& value, double weight = 1) const;

  /// Names of the parameters that the last average_parameters() averaged, in registration order.
  std::vector<std::string> touched() const;
  /// The cost of the last average_parameters().
  const StepReport& report() const;
  /// The traffic of all steps.
  TrafficReport traffic() const;
  /// Bytes of memory that this worker holds for the averaging.
  std::size_t bytes_held() const;
  const Group& group() const;

 private:
  ParallelAveraging& state() const;

  std::unique_ptr<ParallelAveraging> state_;  ///< null when moved from
};

}  // namespace tutti
