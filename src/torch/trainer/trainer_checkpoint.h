#pragma once

// A Trainer's run as a checkpoint: its tensors by file and name, and where it stands. Independent
// of the number of workers.
//
// Threads: one. Failure: InvalidArgument, and nothing has changed where a checkpoint is refused;
// Mismatch where filling the tensors failed half-way.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "run/checkpoint_store.h"
#include "run/data_order.h"
#include "run/loss_scaler.h"
#include "run/step_log.h"
#include "torch/model/wrapped_model.h"
#include "torch/trainer/replica_parameters.h"

namespace tutti {

/// Where a run stands, besides its tensors.
struct RunPosition {
  std::int64_t steps = 0;
  std::int64_t dropped_in_a_row = 0;
  DataPosition data;
  LossScaleState loss_scale;
  std::int64_t averaged_steps = 0;
  std::vector<std::int64_t> updates;  ///< per parameter, in registration order
  ReplicaPosition own;                ///< of per-replica parameters; empty without
  /// By parameter, what its optimizer of torch keeps besides tensors.
  nlohmann::json optimizer_numbers = nlohmann::json::object();
  /// Which model each of the latest steps was about; empty where none was about one of several.
  std::vector<std::uint64_t> turns = {};
};

/// An object.
nlohmann::json to_json(const RunPosition& position);
/// nlohmann::json::exception for a name that is missing or a value of another kind.
RunPosition position_of(const nlohmann::json& state);
/// InvalidArgument for one of another number of parameters.
RunPosition position_of(const Checkpoint& checkpoint, std::size_t parameters);

inline constexpr const char* kParametersFile = "parameters.safetensors";
inline constexpr const char* kMastersFile = "masters.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kBuffersFile = "buffers.safetensors";
inline constexpr const char* kAveragesFile = "averages.safetensors";
/// What codecs left out, per logical worker.
inline constexpr const char* kResidualsFile = "residuals.safetensors";
/// Holds the per-replica parameters of the logical workers but the first.
inline constexpr const char* kReplicaFile = "per_replica.safetensors";
/// What an averaging policy keeps.
inline constexpr const char* kAveragingFile = "averaging.safetensors";
/// Its names and shapes are the user's: the checkpoint decides them.
inline constexpr const char* kShardStatesFile = "shard_states.safetensors";

/// Name under which the manifest keeps structure_of() the model.
inline constexpr const char* kStructure = "model";
/// What an archive of the model needs besides its tensors: "modules", the names of all that it is
/// made of, and "same_as", tied parameters by name with the name that stands for them.
nlohmann::json structure_of(const torch::nn::Module& module);

/// Unsupported for a tensor of a type that a checkpoint cannot hold. `what` begins the text:
/// buffer "mask".
void require_storable(const std::string& what, const torch::Tensor& tensor);

/// Name under which the manifest keeps arithmetic_facts().
inline constexpr const char* kArithmetic = "arithmetic";
/// How what the checkpoint was computed with differs from what is here, one difference a line; ""
/// where nothing does, or it does not say.
std::string arithmetic_differences(const Checkpoint& checkpoint);

void save_checkpoint(CheckpointStore& store, const std::string& run, const RunFingerprint& facts,
                     const RunPosition& position, const nlohmann::json& structure,
                     const TensorFiles& files);

/// Opens the newest checkpoint (only of those that the run `written_by` wrote, where it is given),
/// or with `fall_back` the newest good one; refuses one of other facts with the differences.
/// Nothing where there is none.
std::optional<Checkpoint> open_checkpoint(const CheckpointStore& store, const RunFingerprint& facts,
                                          bool fall_back,
                                          const std::optional<std::string>& written_by);
/// Fills the tensors, once all of them were found to fit. Mismatch where a file that was verified
/// can no longer be read.
void fill(const Checkpoint& checkpoint, const TensorFiles& files);
/// SHA-256 of each tensor's bytes, row-major, by the names of a step log: "0.weight",
/// "0.weight/exp_avg", "0.weight/master", "0.weight/average",
/// "0.weight/residual.3", "logical.1/0.weight", "buffer:1.running_mean".
NamedDigests digests_of(const TensorFiles& files);
/// All tensors of a file whose names and shapes the checkpoint decides.
NamedTensors load_tensors(const Checkpoint& checkpoint, const std::string& file);

}  // namespace tutti
