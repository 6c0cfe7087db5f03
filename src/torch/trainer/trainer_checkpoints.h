#pragma once

// A Trainer's run as checkpoints, hash and step log: what its state consists of lies in RunState.
//
// Threads: one. Failure: where a checkpoint is refused, nothing has changed: Corrupt, IoError or
// Unsupported for one that cannot be read, InvalidArgument for one of another run. Mismatch where
// filling the tensors failed half-way.

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "run/files/run_fingerprint.h"
#include "run/state/run_state.h"
#include "torch/run/between_steps.h"
#include "torch/trainer/trainer_world.h"
#include "tutti/trainer.h"

namespace tutti {

class TrainerCheckpoints {
 public:
  /// `state` is all that checkpoints and hashes consist of. `facts`: what another run has to have
  /// in common to resume from a checkpoint of this one. Keeps references. Looks on rank 0 whether
  /// the step log can be one. Collective.
  TrainerCheckpoints(const BetweenSteps& between, TrainerWorld& world, RunState& state,
                     RunFingerprint facts);

  /// Throws Mismatch where workers keep other values. `when` begins the text. Collective.
  void require_equal_kept(const std::string& when) const;

  /// Returns rank 0's error, in its words elsewhere. `check` has to hold on all workers.
  /// Collective.
  std::exception_ptr save(const std::string& directory, const SaveOptions& options,
                          std::int64_t steps, const std::function<void()>& check);
  /// Whether there was one: then all parts are what it holds. Collective.
  bool load(const std::string& directory, const LoadOptions& options,
            const std::function<void()>& check, const std::function<void()>& spread);
  /// The hash of the state, for a model of `parameters` parameters.
  std::string sha256(std::size_t parameters) const { return state_.sha256(parameters); }

  /// Whether the step log has digests of that step.
  bool hashes(std::int64_t step) const {
    return options_.hash_every > 0 && step % options_.hash_every == 0;
  }
  /// The step is over, whether it can be logged or not.
  void log(const StepResult& result) noexcept;

 private:
  void write(const std::string& directory, const SaveOptions& options, std::int64_t steps);
  std::vector<std::byte> read(const std::string& directory, const LoadOptions& options) const;
  bool write_log(const StepResult& result);
  const std::string& run() const;

  const BetweenSteps& between_;
  TrainerWorld& world_;
  const TrainerOptions& options_;
  RunState& state_;
  RunFingerprint facts_;
  bool said_newer_ = false;  ///< that newer checkpoints lie beside those that are saved
  bool log_failed_ = false;  ///< in the last step that was to be logged
};

}  // namespace tutti
