#include "torch/ops/collective_node.h"

#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "torch/model/graph_node.h"
#include "tutti/error.h"

namespace tutti::ops {
namespace {

class CollectiveNode final : public torch::autograd::Node {
 public:
  explicit CollectiveNode(GradientOfCollective gradient) : gradient_(std::move(gradient)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported("a second derivative of a collective (create_graph)");
    }
    auto gradient = std::move(gradients.at(0));
    if (!gradient.defined()) gradient = input_metadata(0).zeros_like();
    auto result = gradient_(gradient.contiguous());
    if (num_outputs() == 0) return {};
    return {std::move(result)};
  }
  std::string name() const override { return "tutti::Collective"; }

 private:
  GradientOfCollective gradient_;
};

}  // namespace

bool records_gradients(torch::ScalarType type) {
  return c10::GradMode::is_enabled() && c10::isFloatingType(type);
}

torch::Tensor with_gradient(torch::Tensor result, const torch::Tensor& input,
                            GradientOfCollective gradient) {
  if (!records_gradients(result.scalar_type())) return result;
  const auto node = make_graph_node<CollectiveNode>(std::move(gradient));
  if (input.defined() && input.requires_grad()) {
    node->set_next_edges(torch::autograd::collect_next_edges(input));
  }
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace tutti::ops
