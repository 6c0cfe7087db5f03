#include "tutti/parallel_cross_entropy.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cmath>
#include <functional>
#include <utility>

#include "torch/classes/classifier_file.h"
#include "torch/model/graph_node.h"
#include "torch/ops/collective_node.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Leads to the features, and to the layer's anchor: a backward that accumulates gradients comes to
/// both, torch::autograd::grad() by the features to these alone, and counts for nothing.
class LossNode final : public torch::autograd::Node {
 public:
  using Gradient = std::function<torch::Tensor(const torch::Tensor& gradient, bool counts)>;
  explicit LossNode(Gradient gradient) : gradient_(std::move(gradient)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported("a second derivative of a ParallelCrossEntropy (create_graph)");
    }
    auto gradient = std::move(gradients.at(0));
    if (!gradient.defined()) gradient = input_metadata(0).zeros_like();
    const bool counts = task_should_compute_output(1);
    auto of_features = gradient_(gradient, counts);
    if (!task_should_compute_output(0)) of_features.reset();
    return {std::move(of_features), counts ? torch::zeros({0}) : torch::Tensor()};
  }
  std::string name() const override { return "tutti::ParallelCrossEntropy"; }

 private:
  Gradient gradient_;
};

}  // namespace

ParallelCrossEntropyImpl::ParallelCrossEntropyImpl(const Group& group, std::int64_t features,
                                                   std::int64_t classes,
                                                   const Optimizer::Rule& rule,
                                                   const ParallelCrossEntropyOptions& options)
    : SplitModule(group, options.name),
      own_(std::make_shared<Classifier>(group,
                                        ClassifierSettings(features, classes, rule, options))),
      anchor_(torch::zeros({0}).requires_grad_()) {}

ParallelCrossEntropyImpl::~ParallelCrossEntropyImpl() = default;

torch::Tensor ParallelCrossEntropyImpl::forward(const torch::Tensor& features,
                                                const torch::Tensor& labels) {
  auto result = own_->forward(features, labels, is_training());
  correct_ = result.correct;
  const auto kept = result.kept.numel();
  const auto reduction = own_->settings().options.reduction;
  torch::Tensor loss;
  if (reduction == LossReduction::none) {
    loss = result.losses.clone();
  } else {
    loss = result.losses.sum();
    if (reduction == LossReduction::mean && kept > 0) loss = loss / kept;
  }
  // In an evaluation there is nothing to learn from.
  if (!ops::records_gradients(loss.scalar_type()) || own_->rounds().is_evaluation()) return loss;
  const auto node = make_graph_node<LossNode>(
      [own = own_, weight = shared_weight(), result, reduction, kept, samples = features.size(0)](
          const torch::Tensor& gradient, bool counts) {
        auto each = reduction == LossReduction::none ? gradient : gradient.expand({samples});
        if (reduction == LossReduction::mean && kept > 0) each = each / kept;
        if (counts) {
          own->take_backward(result.call);
          // Of weight 0 nothing counts, whatever it is.
          if (*weight != 0) {
            result.call->gradients.add_(each.index_select(0, result.kept), *weight);
          }
        }
        return result.gradients * each.unsqueeze(1);
      });
  node->set_next_edges(torch::autograd::collect_next_edges(features, anchor_));
  torch::autograd::set_history(loss, node);
  return loss;
}

const torch::Tensor& ParallelCrossEntropyImpl::correct() const { return correct_; }

torch::Tensor ParallelCrossEntropyImpl::predict(const torch::Tensor& features) {
  return own_->predict(features);
}

void ParallelCrossEntropyImpl::step(double rate_factor) {
  if (own_->rounds().is_step()) {
    throw InvalidArgument(own_->settings().label() +
                          ": step() in a step of a Trainer, which updates the layer itself");
  }
  if (!std::isfinite(rate_factor)) {
    throw InvalidArgument(fmt::format("{}: step({})", own_->settings().label(), rate_factor));
  }
  own_->gather_gradients(rate_factor);
  own_->update({.rate_factor = rate_factor});
}

void ParallelCrossEntropyImpl::zero_grad(bool set_to_none) {
  SplitModule::zero_grad(set_to_none);
  if (!own_->rounds().is_step()) own_->forget();
}

std::int64_t ParallelCrossEntropyImpl::updates() const { return own_->updates(); }
std::int64_t ParallelCrossEntropyImpl::features() const { return own_->settings().features; }
std::int64_t ParallelCrossEntropyImpl::classes() const { return own_->settings().classes; }
std::int64_t ParallelCrossEntropyImpl::pieces() const { return own_->settings().options.pieces; }

std::uint64_t ParallelCrossEntropyImpl::bytes() const {
  return own_->settings().bytes_of(group().rank(), group().size());
}

std::uint64_t ParallelCrossEntropyImpl::bytes_of_all() const {
  return static_cast<std::uint64_t>(classes()) * own_->settings().bytes_per_class();
}

std::string ParallelCrossEntropyImpl::sha256() { return ClassifierFile(*own_).sha256(); }
void ParallelCrossEntropyImpl::save(const std::string& file) { ClassifierFile(*own_).save(file); }
void ParallelCrossEntropyImpl::load(const std::string& file) {
  if (own_->rounds().is_step()) {
    throw InvalidArgument(own_->settings().label() + ": load() in a step of a Trainer");
  }
  ClassifierFile(*own_).load(file);
}

void ParallelCrossEntropyImpl::divide_kept(double divisor) { own_->divide(divisor); }
double ParallelCrossEntropyImpl::kept_squares() {
  own_->gather_gradients();
  return own_->squares();
}
void ParallelCrossEntropyImpl::scale_kept(double factor) { own_->scale(factor); }
void ParallelCrossEntropyImpl::forget_kept() noexcept { own_->forget(); }

std::vector<SplitTensor> ParallelCrossEntropyImpl::split_tensors() {
  return ClassifierFile(*own_).split_tensors();
}

}  // namespace tutti
