#include "torch/model/batch_rows.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <limits>

namespace tutti {
namespace {

using torch::autograd::Node;

/// Parameters that are looked at: of most models the first layer's, and some more.
constexpr std::size_t kMost = 8;

/// Rows of what the operation of `node` returned; 0: not a batch.
std::int64_t rows_of(const Node& node, const torch::Tensor& parameter) {
  if (node.num_inputs() == 0) return 0;
  const auto& result = node.input_metadata(0);
  if (result.is_nested_tensor()) return 0;
  const auto sizes = result.shape_as_dim_vector();
  if (sizes.size() < 2) return 0;
  std::int64_t elements = 1;
  for (const auto& size : sizes) elements *= size.maybe_as_int().value_or(0);
  const bool may_be_view = parameter.dim() > 1 && elements == parameter.numel();
  return may_be_view ? 0 : sizes[0].maybe_as_int().value_or(0);
}

}  // namespace

std::optional<BatchRows> batch_rows(const NamedTensors& parameters) {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return {};
  const std::size_t count = std::min(kMost, parameters.size());
  std::array<Node*, kMost> leaves{};
  for (std::size_t p = 0; p < count; ++p) {
    const auto& parameter = parameters[p].second;
    if (parameter.requires_grad()) {
      leaves[p] = torch::autograd::impl::grad_accumulator(parameter).get();
    }
  }
  std::optional<BatchRows> found;
  auto number = std::numeric_limits<std::uint64_t>::max();
  for (const auto* const node : *nodes) {
    for (const auto& edge : node->next_edges()) {
      if (!edge.is_valid() || edge.function->num_outputs() != 0) continue;
      const auto leaf = std::find(leaves.begin(), leaves.begin() + count, edge.function.get());
      const auto p = static_cast<std::size_t>(leaf - leaves.begin());
      if (p == count || (found && p > found->parameter)) continue;
      const auto rows = rows_of(*node, parameters[p].second);
      if (rows == 0) continue;
      // The first operation counts where several take the parameter.
      if (found && p == found->parameter && node->sequence_nr() > number) continue;
      found = {.parameter = p, .rows = rows};
      number = node->sequence_nr();
    }
  }
  return found;
}

}  // namespace tutti
