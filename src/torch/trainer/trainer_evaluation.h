#pragma once

// Evaluation with a Trainer: a data set's metrics, and calls that show other values of the
// parameters than the current ones.
//
// Threads: one. Failure: InvalidArgument; PeerFailed where another worker's part threw.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "run/data/data_order.h"
#include "torch/run/between_steps.h"
#include "torch/trainer/trained_model.h"
#include "tutti/metrics.h"
#include "tutti/trainer.h"

namespace tutti {

class KeptBuffers;

class TrainerEvaluation {
 public:
  /// `steps`: those that are over. `seed` puts torch's generator where it stands between steps.
  /// Keeps references.
  TrainerEvaluation(const TrainedModel& trained, BetweenSteps& between, const std::int64_t& steps,
                    std::function<void()> seed)
      : trained_(trained), between_(between), steps_(steps), seed_(std::move(seed)) {}

  // See Trainer::evaluate().
  Metrics evaluate(const DataRequest& request, const Trainer::Evaluate& compute);
  void with_ema(const std::function<void()>& body);
  torch::Tensor gather(const std::string& name) const;
  void with_logical_worker(std::int64_t logical, const std::function<void()>& body);

 private:
  void bring(std::size_t logical);
  std::vector<ShardMetrics> evaluate_own(const DataRequest& request,
                                         const Trainer::Evaluate& compute,
                                         const KeptBuffers& buffers);

  TrainedModel trained_;
  BetweenSteps& between_;
  const std::int64_t& steps_;
  std::function<void()> seed_;
};

}  // namespace tutti
