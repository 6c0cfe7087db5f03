#pragma once

// What a run has per parameter, as parts of its state: values and optimizer state, what codecs
// keep, moving averages.
//
// Threads: one. Failure: RunPart's.

#include <cstddef>
#include <string>
#include <vector>

#include "run/state/run_part.h"
#include "sync/coded/coded_gradients.h"
#include "sync/plan/plan.h"
#include "sync/update/moving_averages.h"
#include "sync/update/partitioned_update.h"
#include "sync/update/shared_model.h"

namespace tutti {

/// Values, master copies, optimizer state and update counts.
class ParametersRunPart : public RunPart {
 public:
  /// `states[p]`: names of the tensors of parameter p's optimizer. Keeps references.
  ParametersRunPart(const Plan& plan, const SharedModel& model, PartitionedUpdate& update,
                    std::vector<std::vector<std::string>> states);
  void list(StateTensors& tensors) const override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;
  void hash_parameter(std::size_t parameter, Sha256& hash) const override;

 private:
  const Plan& plan_;
  const SharedModel& model_;
  PartitionedUpdate& update_;
  std::vector<std::vector<std::string>> states_;
};

/// Residuals and velocities of each logical worker.
class ResidualsRunPart : public RunPart {
 public:
  /// Keeps references.
  ResidualsRunPart(const Plan& plan, CodedGradients& coded)
      : RunPart("residuals"), plan_(plan), coded_(coded) {}
  bool is_on_hosts() const override { return coded_.has_kept_elsewhere(); }
  void bring() override { coded_.bring_kept(); }
  void list(StateTensors& tensors) const override;
  void hash_parameter(std::size_t parameter, Sha256& hash) const override;

 private:
  const Plan& plan_;
  CodedGradients& coded_;
};

/// Moving averages; state_sha256() leaves them out.
class AveragesRunPart : public RunPart {
 public:
  /// `averages` may be null: the checkpoint then contains 0 averaged steps. Keeps references.
  AveragesRunPart(const Plan& plan, const SharedModel& model, MovingAverages* averages)
      : RunPart("averages"), plan_(plan), model_(model), averages_(averages) {}
  void list(StateTensors& tensors) const override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  const Plan& plan_;
  const SharedModel& model_;
  MovingAverages* averages_;
};

}  // namespace tutti
