#pragma once

// The last layer of a classifier and its loss in one, with the classes split over workers: for
// millions of them.
//
//   tutti::ParallelCrossEntropy head(group, 64, 10'000'000, tutti::Sgd{.lr = 0.1, .momentum = 0.9},
//                                    {.sample_rate = 0.1});
//   auto loss = head->forward(features, labels);   // this member's samples
//   loss.backward();                               // gradients of the features
//   head->step();                                  // the layer's own update
//
// Every member gives its samples, and all classes take part in the loss of each. The classes are
// cut into pieces, consecutive and of about equal size, and each member has some of them: weights
// and optimizer state, nothing twice. The pieces belong to the run, and how many workers share them
// decides no bit: sums over classes are folded along the canonical tree over the pieces
// (docs/numerics.md).
//
// In a Trainer, whose model has the layer among its modules, shards call forward() and leave the
// rest to it: their losses' gradients are folded along the tree over the shards, and the layer is
// updated with the step, by its own rule (docs/split_layers.md).
//
// Neither logits nor the gradient of the weights exist as a whole: both are computed for some
// thousand classes at a time, the latter while it is applied. So a layer costs its weights and the
// rule's state, and little more. docs/split_layers.md has the arithmetic.
//
// Threads: as Group. Failure: that of Group; what else a call throws stands there.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/optimizer.h"
#include "tutti/split_module.h"

namespace tutti {

/// The logit of a sample's own class is scale·(cos(m1·θ + m2) − m3), where θ is the angle between
/// features and weights; those of other classes are scale·cos θ. ArcFace (Deng et al. 2019, arXiv
/// 1801.07698), CosFace (Wang et al. 2018, arXiv 1801.09414) and SphereFace (Liu et al. 2017, arXiv
/// 1704.08063) are settings of it. Cosines beyond ±(1 − 1e-7) count as that.
struct Margin {
  double m1 = 1;
  double m2 = 0;
  double m3 = 0;
  double scale = 64;
};
inline Margin arc_face(double m = 0.5, double scale = 64) { return {1, m, 0, scale}; }
inline Margin cos_face(double m = 0.35, double scale = 64) { return {1, 0, m, scale}; }
inline Margin sphere_face(double m = 1.35, double scale = 64) { return {m, 0, 0, scale}; }

/// What forward() makes of the samples' losses.
enum class LossReduction : std::uint8_t {
  mean,  ///< over this member's samples that count; 0 where there are none
  sum,
  none,  ///< one for each sample; 0 for one that is ignored
};

struct ParallelCrossEntropyOptions {
  /// Logits of angles instead of products.
  std::optional<Margin> margin = {};
  /// ε in [0, 1): the target has 1 − ε for the sample's class and ε/K for each of the K classes
  /// that take part (Szegedy et al. 2016, arXiv 1512.00567, as torch's cross_entropy).
  double label_smoothing = 0;
  /// Samples of this label count for nothing. They must not be a class.
  std::int64_t ignore_index = -100;
  LossReduction reduction = LossReduction::mean;
  /// The share of the classes that take part, in (0, 1]. Of each piece those are the samples' own
  /// classes, and others at random until there are enough (An et al. 2022, arXiv 2203.15565). The
  /// choice depends on the seed, updates(), the number of the call since then, and the piece.
  /// Weights and state of other classes stay as they are: no decay, and momentum is neither applied
  /// nor lessened. In eval() all classes take part.
  double sample_rate = 1;
  /// Into how many pieces the classes are cut: a property of the run. 0: 64, or as many as there
  /// are classes. No member has a part of a piece.
  std::int64_t pieces = 0;
  /// The seed of initial weights, which are uniform in ±1/√features, as torch's Linear, and of
  /// sampled classes.
  std::uint64_t seed = 0;
  /// float32, float64, or bfloat16: then state and arithmetic are float32, features too, and an
  /// updated weight is rounded up or down at random, with its mean where it was, so that small
  /// steps are not lost.
  torch::ScalarType dtype = torch::kFloat32;
  std::string name = "classifier";  ///< in errors
};

class Classifier;

class ParallelCrossEntropyImpl final : public SplitModule {
 public:
  /// Compares all arguments on all members. InvalidArgument for no features or classes, a rate
  /// outside (0, 1] and other numbers that make no sense; Unsupported for another type, or a rule
  /// of torch's own optimizers; OutOfMemory on all members, with the figures, where weights and
  /// state do not fit the machine, a cgroup or a member's own limit (RLIMIT_AS, RLIMIT_DATA).
  /// Collective.
  ParallelCrossEntropyImpl(const Group& group, std::int64_t features, std::int64_t classes,
                           const Optimizer::Rule& rule,
                           const ParallelCrossEntropyOptions& options = {});
  ~ParallelCrossEntropyImpl() override;

  /// The losses of this member's samples: `features` [b, features] of the weights' type (float32
  /// for bfloat16), `labels` [b] of int64, 0 … classes − 1 or ignore_index. b may differ from
  /// member to member, and be 0. The gradient of the features needs no collective in backward. For
  /// a label that is no class: InvalidArgument with its place, PeerFailed on the other members, and
  /// the group stays usable. So it is where gradients are recorded and those of a DataParallel's
  /// step before were neither applied nor forgotten. Mismatch where members are at different layers
  /// or calls, or one samples the classes and another one does not. Collective.
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& labels);
  /// Whether no class that took part in the last forward() has a larger logit than the sample's own
  /// without its margin: [b] of bool for this member's samples. False for one that is ignored.
  const torch::Tensor& correct() const;
  /// The class of the largest logit among all classes for each of this member's samples, the lowest
  /// of those whose logits are equal: [b] of int64. Equal rows of weights may have logits that
  /// differ in their last bits, as those of a product depend on where in a block a row lies. NaN is
  /// the largest, as in torch. InvalidArgument in a step of a Trainer. Collective.
  torch::Tensor predict(const torch::Tensor& features);

  /// Updates the weights by the gradients of all backwards since the last one, of the sum over the
  /// members of what each has called backward() on, and forgets them. The learning rate is
  /// multiplied by `rate_factor`. Where no backward was run nothing changes. Mismatch where members
  /// have run backwards of different calls, or give different factors; InvalidArgument for a factor
  /// that is not finite, and in a step of a Trainer. Collective.
  ///
  /// torch::autograd::grad() by the features is no such backward, as it is none of parameters. The
  /// backward of a forward() that was before the last update is InvalidArgument.
  void step(double rate_factor = 1);
  /// Forgets what step() would use; in a step of a Trainer, nothing.
  void zero_grad(bool set_to_none = true) override;
  /// How many step() have changed the weights.
  std::int64_t updates() const;

  std::int64_t features() const;
  std::int64_t classes() const;
  std::int64_t pieces() const;
  /// Bytes of weights and state on this member; on all.
  std::uint64_t bytes() const;
  std::uint64_t bytes_of_all() const;

  /// The weights of this member's pieces, one entry for each, then the rule's states.
  std::vector<SplitTensor> split_tensors() override;
  bool updates_itself() const override { return true; }
  void divide_kept(double divisor) override;
  void forget_kept() noexcept override;
  double kept_squares() override;
  void scale_kept(double factor) override;
  /// SHA-256 over all weights, in the order of classes: what parameters_sha256() gives for a layer
  /// that has them in one parameter `weight`. Collective.
  std::string sha256();
  /// Writes weights, states and the number of updates into `file`, a safetensors file of whole
  /// tensors that does not depend on the number of members; rank 0 writes, piece by piece. An
  /// existing file is InvalidArgument, IoError what the system refuses; PeerFailed on the other
  /// members. Collective.
  void save(const std::string& file);
  /// Reads what save() wrote, with any number of members; rank 0 reads. Corrupt or InvalidArgument,
  /// and PeerFailed on the others, where the file is cut, its header is damaged, or it is of
  /// another layer: nothing has changed then. The numbers have no hash here, as they have in a
  /// Trainer's checkpoint. The rule, the margin and the other options stay those of this layer.
  /// InvalidArgument in a step of a Trainer. Collective.
  void load(const std::string& file);

  torch::Tensor anchor() const override { return anchor_; }
  Classifier& own() const { return *own_; }

 private:
  std::shared_ptr<Classifier> own_;  ///< which the graph of a loss may outlive this object with
  torch::Tensor anchor_;
  torch::Tensor correct_;
};

/// A module holder, as TORCH_MODULE makes them, that takes options in braces, too.
class ParallelCrossEntropy : public torch::nn::ModuleHolder<ParallelCrossEntropyImpl> {
 public:
  using torch::nn::ModuleHolder<ParallelCrossEntropyImpl>::ModuleHolder;
  using Impl = ParallelCrossEntropyImpl;
  ParallelCrossEntropy(const Group& group, std::int64_t features, std::int64_t classes,
                       const Optimizer::Rule& rule, const ParallelCrossEntropyOptions& options = {})
      : ModuleHolder(
            std::make_shared<ParallelCrossEntropyImpl>(group, features, classes, rule, options)) {}
};

/// Bytes that the members of such a layer hold, in all and the member with most of them, before it
/// is made. The errors of its constructor for arguments that make no sense.
struct ClassifierMemory {
  std::uint64_t of_all = 0;
  std::uint64_t largest_member = 0;
};
ClassifierMemory classifier_memory(int members, std::int64_t features, std::int64_t classes,
                                   const Optimizer::Rule& rule,
                                   const ParallelCrossEntropyOptions& options = {});

}  // namespace tutti
