#include "torch/ops/collective_node.h"

#include <torch/csrc/autograd/functions/utils.h>

#include <optional>
#include <utility>

#include "base/helper_thread.h"
#include "torch/model/graph_node.h"
#include "torch/model/loss_weight.h"
#include "torch/model/resolved.h"
#include "tutti/error.h"
#include "tutti/ops.h"

namespace tutti::ops {
namespace {

class CollectiveNode final : public torch::autograd::Node {
 public:
  /// `is_on_device`: a thread of the device's runs it, while that of the program waits.
  CollectiveNode(GradientOfCollective gradient, bool is_on_device)
      : gradient_(std::move(gradient)) {
    if (is_on_device) program_ = ProgramThread::own();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported("a second derivative of a collective (create_graph)");
    }
    std::optional<WorksFor> works;
    if (program_) works.emplace(*program_);
    auto gradient = std::move(gradients.at(0));
    if (!gradient.defined()) gradient = input_metadata(0).zeros_like();
    auto result = gradient_(resolved(gradient).contiguous());
    if (num_outputs() == 0) return {};
    return {std::move(result)};
  }
  std::string name() const override { return "tutti::Collective"; }

 private:
  GradientOfCollective gradient_;
  std::optional<ProgramThread> program_;
};

auto node_of(const torch::Tensor& result, const torch::Tensor& input,
             GradientOfCollective gradient) {
  const auto node = make_graph_node<CollectiveNode>(std::move(gradient), !result.is_cpu());
  if (input.defined() && input.requires_grad()) {
    node->set_next_edges(torch::autograd::collect_next_edges(input));
  }
  return node;
}

thread_local int unweighted = 0;

}  // namespace

double loss_weight(const Group& group) {
  if (group.size() == 1 || current_backward() < 0) return 1;
  const auto& weight = current_loss_weight();
  weight.carried();
  return weight.value;
}

UnweightedGuard::UnweightedGuard() { ++unweighted; }
UnweightedGuard::~UnweightedGuard() { --unweighted; }

GradientOfCollective of_weighted_losses(const Group& group, const char* operation,
                                        GradientOfCollective gradient) {
  if (group.size() == 1 || unweighted > 0) return gradient;
  return [group, operation, gradient = std::move(gradient)](const torch::Tensor& mine) {
    const double weight = loss_weight(group);
    if (weight == 1) return gradient(mine);
    const bool counts = weight != 0;
    auto all = gradient(counts ? mine * weight : given_without_weight(mine, operation));
    if (!all.defined()) return all;
    return counts ? all / weight : taken_without_weight(std::move(all), operation);
  };
}

bool records_gradients(torch::ScalarType type) {
  return c10::GradMode::is_enabled() && (c10::isFloatingType(type) || c10::isComplexType(type));
}

torch::Tensor with_gradient(torch::Tensor result, const torch::Tensor& input,
                            GradientOfCollective gradient) {
  if (!records_gradients(result.scalar_type())) return result;
  torch::autograd::set_history(result, node_of(result, input, std::move(gradient)));
  return result;
}

torch::Tensor view_with_gradient(const torch::Tensor& input, GradientOfCollective gradient) {
  if (!records_gradients(input.scalar_type())) return input.view_as(input);
  // A tensor of inference mode has no place in a graph.
  if (input.is_inference()) return with_gradient(input.clone(), input, std::move(gradient));
  auto view = [&] {
    const torch::NoGradGuard no_grad;
    return input.view_as(input);
  }();
  torch::autograd::set_history(view, node_of(view, input, std::move(gradient)));
  torch::autograd::impl::get_view_autograd_meta(view)->set_creation_meta(
      torch::autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  return view;
}

}  // namespace tutti::ops
