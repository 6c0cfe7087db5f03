#pragma once

// The layers of a Trainer's model whose parameters are split over the workers. They take part in a
// step by calls that all workers make in every round, and update their parameters themselves.
//
// Threads: one. Failure: Unsupported, with the reason, for layers and options that a Trainer does
// not have together; that of the layers' calls.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/step/step_part.h"
#include "torch/classes/classifier.h"
#include "tutti/clip.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti {

/// What the layers take of their Trainer's options.
struct ClassifierTrainer {
  std::string name;
  std::int64_t shards;
  Clip clip;
  std::optional<std::chrono::milliseconds> deadline;
  /// Which option a Trainer cannot have with such layers, and why: "ema_decay: …"; empty: none.
  std::string refusal;
};

/// As a StepPart it comes before UpdateStepPart, which clips by the norm of all.
class TrainedClassifiers final : public StepPart {
 public:
  ~TrainedClassifiers() override;
  TrainedClassifiers(const TrainedClassifiers&) = delete;
  TrainedClassifiers& operator=(const TrainedClassifiers&) = delete;
  /// Null where the model has none.
  static std::unique_ptr<TrainedClassifiers> find(const Group& group,
                                                  const torch::nn::Module& module,
                                                  const ClassifierTrainer& trainer);

  struct Layer {
    std::string name;  ///< in the module: "head"
    ParallelCrossEntropyImpl* layer;
    Classifier& own() const { return layer->own(); }
  };
  const std::vector<Layer>& layers() const { return layers_; }
  /// In which a worker waits for others that do not come to a call.
  const Group& group() const { return layers_.front().own().group(); }

  /// Of which only the layers of `active` take part; null: all.
  void begin_step(std::int64_t step, const torch::nn::Module* active);
  /// Runs `shards`, in which this worker calls layers as often as its shards do: others without any
  /// left join each call, and this one theirs in the end, also where a shard has failed.
  /// Collective.
  void run_shards(const std::function<void()>& shards);
  void begin_shard(std::int64_t shard);
  /// The Trainer runs the shard's backward, or no longer.
  void set_backward(bool runs) const;
  /// Throws what a call of the shard, or of an evaluation's batch, has thrown, though it may have
  /// been caught.
  void end_shard() const;
  /// The weight of the shard whose backward comes. InvalidArgument where the shard has called a
  /// layer and gives no loss.
  void weigh(double weight, bool gives_loss);
  /// Runs an evaluation's `body`, in which this worker calls layers as often as its samples need:
  /// others without any left join each call. Collective.
  void evaluate(const std::function<void()>& body);
  JobState& job() const { return job_; }

  /// Keeps a reference: `nodes` know the weight of a step, by which gradients are divided.
  StepPart& part_with(const NodeStore& nodes);
  void judge(StepFacts& step) override;
  void apply(const StepFacts& step) override;
  void drop() noexcept override;
  void end(StepFacts& /*step*/) override { drop(); }

 private:
  TrainedClassifiers(JobState& job, const ClassifierTrainer& trainer, std::vector<Layer> layers);
  /// Runs `body` among the layers' calls: see run_shards().
  void run(const std::function<void()>& body) const;
  /// Gathers the gradients of all shards, and their squares where the clip needs norms or a sum may
  /// overflow. Collective.
  void gather_gradients();
  /// Which gradient is not finite; empty: none.
  std::string not_finite() const;
  /// Of the gradients, which are `loss_scale` times too large, too.
  double divisor(double loss_scale) const;
  /// What each member says: 0, or a call of one of the layers.
  std::vector<std::int64_t> tell(std::int64_t call) const;
  ClassifierRounds::Announce announce_of(std::size_t layer) const;
  /// Takes part in others' calls until it is the turn of this member's own; 0: until nobody has
  /// any.
  void join_others(std::int64_t call) const;

  JobState& job_;
  ClassifierTrainer trainer_;
  const NodeStore* nodes_ = nullptr;
  std::shared_ptr<const std::string> owner_;  ///< "Trainer "model"", of the layers
  std::vector<double> squares_;               ///< of this step's gradients, where they were needed
  std::vector<Layer> layers_;
  std::vector<bool> is_active_;  ///< of them in this step
};

}  // namespace tutti
