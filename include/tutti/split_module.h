#pragma once

// Layers whose parameters are split over the members of a group: each has its rows, and nobody the
// whole.
//
// A layer says so by its type, and no option has to: DataParallel finds it in the model, leaves its
// parameters where they are, averages nothing of them, and gives their gradients the weights that
// all others get.
//
// Threads: as Group. Failure: that of Group.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/group.h"

namespace tutti {

/// This member's rows of a tensor that is split along dim 0.
struct SplitTensor {
  std::string name;      ///< of the whole, within the layer
  torch::Tensor rows;    ///< this member's, which may be none
  std::int64_t first;    ///< the first one's place in the whole
  std::int64_t of_rows;  ///< how many the whole has
};

/// A layer whose backward adds up what the losses of several members give, each one's multiplied by
/// ops::loss_weight().
class WeightedLayer {
 public:
  /// Makes the layer part of `owner`, a Trainer or a DataParallel, while that lives.
  /// InvalidArgument where it is part of another one, with both names.
  void take(const std::shared_ptr<const std::string>& owner);
  /// What errors call the layer, the same on all members: DataParallel gives it its name in the
  /// model.
  void set_layer_name(std::string name) { layer_name_ = std::move(name); }

 protected:
  WeightedLayer() = default;
  ~WeightedLayer() = default;
  WeightedLayer(const WeightedLayer&) = delete;
  WeightedLayer& operator=(const WeightedLayer&) = delete;
  /// For clone_() of a layer: copies of the parameters and buffers that are registered in `other`
  /// replace those of `layer`, which `reset()` has made alike, and it is in train() or eval() as
  /// `other`. InvalidArgument where they are not alike.
  static void take_copies(torch::nn::Module& layer, const torch::nn::Module& other,
                          const std::optional<torch::Device>& device);
  /// The label of one of the layer's collectives: "SyncBatchNorm bn1: statistics".
  std::string label_of(std::string_view layer, std::string_view what) const;

 private:
  std::string layer_name_;
  std::weak_ptr<const std::string> owner_;
};

/// All parameters and buffers that are registered in it are split.
class SplitModule : public torch::nn::Module, public WeightedLayer {
 public:
  const Group& group() const { return group_; }
  /// How much this member's loss counts to who takes the gradients of its rows, and divides them by
  /// the sum of the weights: these are Σ w·g over the members. A DataParallel over the same members
  /// sets it before each backward. 1: nobody does, or a DataParallel over other ranks (a grid):
  /// they are Σ w·g divided by this member's w, in units of its own loss, as what operations carry.
  /// Rows that no DataParallel has are so, too, and those of a member of weight 0 undivided: where
  /// these are not 0, who weighs its loss refuses the step.
  void set_gradient_weight(double weight) { *gradient_weight_ = weight; }
  double gradient_weight() const { return *gradient_weight_; }
  /// Parameters first, in registration order, then what else a checkpoint has to hold.
  virtual std::vector<SplitTensor> split_tensors() = 0;
  /// Whether the layer updates its parameters itself: a DataParallel over other ranks than its own
  /// is Unsupported, as copies of the layer would part.
  virtual bool updates_itself() const { return false; }
  /// A leaf without elements that each backward comes to whose gradient the layer keeps:
  /// DataParallel hooks it as it does parameters. Undefined where the layer's parameters are
  /// registered.
  virtual torch::Tensor anchor() const { return {}; }
  /// What the layer itself has kept of the gradients of this step, besides those of its registered
  /// parameters, is to be divided by it: DataParallel's step is over.
  virtual void divide_kept(double /*divisor*/) {}
  /// … and is to be forgotten: the step has failed.
  virtual void forget_kept() noexcept {}
  /// Σ x² over what all members have kept, the same on all. Collective.
  virtual double kept_squares() { return 0; }
  /// What is kept is to be multiplied by it: clip_grad_norm().
  virtual void scale_kept(double /*factor*/) {}
  /// torch::save() and torch::load() of a model that has the layer are Unsupported: a file would
  /// have this member's rows alone, and look whole. The text names what does it.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  SplitModule(Group group, std::string name)
      : torch::nn::Module(std::move(name)), group_(std::move(group)) {}
  /// `parameter` for a forward() whose backward brings Σ w·g of it, by ops::loss_weight(): what
  /// comes to the parameter is as gradient_weight() has it.
  torch::Tensor own_rows(const torch::Tensor& parameter) const;
  /// Notes that the parameters registered so far are this member's rows: a DataParallel over the
  /// same members that is made of them by name is InvalidArgument, since it would replicate them.
  void note_rows();
  /// For what backward has of the layer, which may outlive it.
  const std::shared_ptr<const double>& shared_weight() const { return shared_weight_; }

 private:
  /// Called by clone() of a torch::nn::Cloneable that has the layer. Unsupported for a layer that
  /// keeps its rows, or their updates, itself.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;

  Group group_;
  std::shared_ptr<const void> noted_;
  std::shared_ptr<double> gradient_weight_ = std::make_shared<double>(1);
  std::shared_ptr<const double> shared_weight_ = gradient_weight_;
};

}  // namespace tutti
