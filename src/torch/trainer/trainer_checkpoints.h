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
#include <memory>
#include <optional>
#include <string>

#include "run/files/run_fingerprint.h"
#include "run/log/step_log.h"
#include "run/state/run_state.h"
#include "torch/run/between_steps.h"
#include "torch/run/kept_values.h"
#include "tutti/trainer.h"

namespace tutti {

class TrainerCheckpoints {
 public:
  /// `facts`: what another run has to have in common to resume from a checkpoint of this one. Keeps
  /// references to options and module. Looks on rank 0 whether the step log can be one. Collective.
  TrainerCheckpoints(const BetweenSteps& between, const TrainerOptions& options,
                     const torch::nn::Module& module, RunFingerprint facts);

  /// The run's state, of which checkpoints and hashes consist. Parts are added before the first
  /// step.
  RunState& state() { return state_; }

  /// The program's own values. They are added to state() as its last part.
  void keep(const std::string& name, KeptValues::Variable variable) { kept_.add(name, variable); }
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
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine,
                                             const char* what) const;

  const BetweenSteps& between_;
  const TrainerOptions& options_;
  const torch::nn::Module& module_;
  RunFingerprint facts_;
  RunState state_;
  KeptValues& kept_;              ///< a part of it
  std::unique_ptr<StepLog> log_;  ///< rank 0's, from the first step on
  bool said_newer_ = false;       ///< that newer checkpoints lie beside those that are saved
  bool log_failed_ = false;       ///< in the last step that was to be logged
};

}  // namespace tutti
