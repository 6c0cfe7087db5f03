#pragma once

// The classifiers of a Trainer's model in its checkpoints, its hash and its step log.
//
// Threads: one. Failure: as RunPart says; OutOfMemory where rank 0 has no room for a whole layer.

#include <torch/torch.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "run/state/run_part.h"
#include "torch/classes/trained_classifiers.h"
#include "torch/run/model_facts.h"

namespace tutti {

/// Whole tensors in a checkpoint. While it is written rank 0 has them all.
class ClassifiersRunPart : public RunPart {
 public:
  /// Keeps a reference. Null: the model has none.
  explicit ClassifiersRunPart(TrainedClassifiers* layers)
      : RunPart(kSplitLayers), layers_(layers) {}
  /// The layers are the module's.
  bool outlives_run() const override { return true; }
  bool is_on_hosts() const override { return layers_ != nullptr; }
  void bring() override;
  void hash(Sha256& hash) const override;
  /// "head.weight", "head.momentum_buffer": as in a checkpoint.
  NamedDigests digests() const override { return digests_; }
  void gather(const Gather& gather) override;
  void release() override { whole_.clear(); }
  void list(StateTensors& tensors) const override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  std::vector<std::byte> read(const Checkpoint& checkpoint) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  const std::vector<TrainedClassifiers::Layer>& layers() const {
    static const std::vector<TrainedClassifiers::Layer> kNone;
    return layers_ == nullptr ? kNone : layers_->layers();
  }
  TrainedClassifiers* layers_;
  std::vector<std::pair<std::string, torch::Tensor>> whole_;
  NamedDigests digests_;                         ///< of the layers' tensors, as last brought
  mutable std::optional<SafetensorsFile> file_;  ///< rank 0's, between read() and restore()
};

}  // namespace tutti
