#include "torch/recurrent/recurrent_layer.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torch/model/graph_node.h"
#include "tutti/error.h"

namespace tutti {

using torch::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

constexpr std::size_t kInputs = 3;   ///< input, hidden, cell
constexpr std::size_t kWeights = 5;  ///< of a direction

std::vector<Tensor*> members_of(CellWeights& weights) {
  return {&weights.input, &weights.hidden, &weights.input_bias, &weights.hidden_bias,
          &weights.projection};
}

class RecurrentLayerNode final : public torch::autograd::Node {
 public:
  RecurrentLayerNode(RecurrentLayer layer, const Tensor& input, const Tensor& hidden,
                     const Tensor& cell, std::vector<KeptChunks> kept)
      : layer_(std::move(layer)), input_(input, false), kept_(std::move(kept)) {
    auto edges = torch::autograd::collect_next_edges(input, hidden, cell);
    for (auto& direction : layer_.directions) {
      for (auto* const weight : members_of(direction)) {
        weights_.emplace_back(*weight, false);
        edges.push_back(weight->defined() ? torch::autograd::impl::gradient_edge(*weight)
                                          : torch::autograd::Edge());
        *weight = Tensor();
      }
    }
    set_next_edges(std::move(edges));
  }

  variable_list apply(variable_list&& given) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported(fmt::format(
          "run_in_chunks \"{}\": a second derivative (create_graph): run the module itself",
          layer_.name));
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto input = input_.unpack();
    auto layer = layer_;
    LayerGradients gradients;
    for (std::size_t w = 0; auto& direction : layer.directions) {
      CellWeights wanted;
      for (std::size_t m = 0; m < kWeights; ++m, ++w) {
        const auto weight = weights_[w].unpack();
        *members_of(direction)[m] = weight;
        if (task_should_compute_output(kInputs + w)) {
          *members_of(wanted)[m] = torch::zeros_like(weight);
        }
      }
      gradients.weights.push_back(std::move(wanted));
    }
    if (task_should_compute_output(0)) {
      gradients.input = torch::empty(input.sizes(), input.options());
    }
    const auto last_state = [&](std::size_t output) {
      return given[output].defined() ? given[output].clone(at::MemoryFormat::Contiguous)
                                     : input_metadata(output).zeros_like();
    };
    gradients.hidden = last_state(1);
    if (layer.kind == CellKind::lstm) gradients.cell = last_state(2);
    LayerPass(layer, input).backward(given[0], kept_, gradients);
    variable_list result{std::move(gradients.input), std::move(gradients.hidden),
                         std::move(gradients.cell)};
    for (auto& direction : gradients.weights) {
      for (auto* const gradient : members_of(direction)) result.push_back(std::move(*gradient));
    }
    return result;
  }
  void release_variables() override {
    input_.reset_data();
    for (auto& weight : weights_) weight.reset_data();
    for (auto& own : kept_) own = {};
    layer_.kept = Tensor();
  }
  std::string name() const override { return "tutti::RecurrentLayer"; }

 private:
  RecurrentLayer layer_;  ///< without its weights
  SavedVariable input_;
  std::vector<SavedVariable> weights_;
  std::vector<KeptChunks> kept_;
};

}  // namespace

RecurrentResult run_layer(RecurrentLayer layer, const Tensor& input, const Tensor& hidden,
                          const Tensor& cell) {
  variable_list sources{input, hidden, cell};
  for (auto& direction : layer.directions) {
    for (const auto* const weight : members_of(direction)) sources.push_back(*weight);
  }
  const bool recorded = c10::GradMode::is_enabled() && std::ranges::any_of(sources, [](auto& one) {
                          return one.defined() && one.requires_grad();
                        });
  std::vector<KeptChunks> kept;
  RecurrentResult result;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = LayerPass(layer, input).forward(hidden, cell, recorded ? &kept : nullptr);
  }
  if (!recorded) return result;
  const auto node =
      make_graph_node<RecurrentLayerNode>(std::move(layer), input, hidden, cell, std::move(kept));
  for (auto* const output : {&result.output, &result.hidden, &result.cell}) {
    if (output->defined()) torch::autograd::set_history(*output, node);
  }
  return result;
}

}  // namespace tutti
