#pragma once

// The state behind an AveragedParallel. Every worker trains the program's model
// by itself. Where a bucket is due, an all-reduce takes the mean of all workers' copies, along the
// tree over ranks, and every worker makes of it what the policy does (averaging_rounds.h).
//
// A mean that is in flight is applied by each worker for itself, without waiting for the others.
//
// The optimizer is the program's own, so that nobody reports which parameters it moves: workers
// compare their bytes with those that they had when they were last due.
//
// The host has copies of a model on a device: copies of what is due take the model's values, and
// the model takes theirs once they are one.
//
// Threads: one. Failure: that of a Group's collectives. Diverged on all workers where a value
// is not finite; InvalidArgument where one worker's model has changed (PeerFailed on the others):
// no copies became one, and the next average_parameters() works. An error while they become one is
// Mismatch on all, and ends this object.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/averaging/averaging_rounds.h"
#include "sync/averaging/worker_copies.h"
#include "sync/plan/plan.h"
#include "torch/model/host_copies.h"
#include "torch/model/wrapped_model.h"
#include "tutti/averaged_parallel.h"

namespace tutti {

class ParallelAveraging {
 public:
  /// Collective. `model` must outlive this.
  ParallelAveraging(const Group& group, WrappedModel model, AveragingPolicyPointer policy,
                    const AveragedParallelOptions& options);
  /// Warns where parameters were never averaged.
  ~ParallelAveraging();

  void average_parameters(std::optional<std::int64_t> step);
  void sync_buffers();

  std::vector<std::string> touched() const;
  const StepReport& report() const { return report_; }
  const TrafficReport& traffic() const { return rounds_.traffic(); }
  std::size_t bytes_held() const { return copies_.bytes() + (host_ ? host_->bytes() : 0); }
  const Group& group() const { return group_; }
  std::optional<std::chrono::milliseconds> deadline() const { return options_.deadline; }

 private:
  using Members = std::vector<std::uint32_t>;
  void require_unchanged() const;
  std::vector<std::byte> changes(const Members& due);
  void find_moved(const Members& due);
  Members sent_in(std::size_t bucket, DType node_type) const;
  void note_changed(std::uint32_t parameter);
  void receive(const Members& arriving);
  void average(std::size_t bucket);
  std::vector<std::vector<std::byte>> gather(std::vector<std::byte> mine);
  CollectiveOptions waits(const char* label) const;

  Group group_;
  WrappedModel model_;
  AveragingPolicyPointer policy_;
  AveragedParallelOptions options_;
  Plan plan_;
  std::unique_ptr<HostCopies> host_;  ///< null for a model on the CPU
  AveragingRounds rounds_;
  WorkerCopies copies_;
  std::vector<std::uint8_t> changed_;   ///< per parameter: its copy of the host, in this step
  std::vector<std::int64_t> last_due_;  ///< per bucket: step
  StepReport report_;
  std::int64_t step_;
  std::exception_ptr ended_;  ///< why
};

}  // namespace tutti
