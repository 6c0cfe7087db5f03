#include "torch/model/batch_rows.h"

#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace tutti {
namespace {

namespace graph = torch::autograd::generated;
using torch::autograd::Node;

/// Of what a node has returned: nothing, a number, or at least a row.
std::optional<c10::SymIntArrayRef> shape_of(const Node& node, std::uint32_t result) {
  if (result >= node.num_inputs()) return {};
  const auto& made = node.input_metadata(result);
  if (made.is_nested_tensor()) return {};
  return made.shape_as_dim_vector();
}

std::optional<std::int64_t> rows_of(const Node& node, std::uint32_t result) {
  const auto shape = shape_of(node, result);
  if (!shape || shape->empty()) return {};
  return shape->front().maybe_as_int();
}

bool is_number(const Node& node) {
  const auto shape = shape_of(node, 0);
  return shape && shape->empty();
}

template <class Loss>
bool averages(const Node& node) {
  const auto* const loss = dynamic_cast<const Loss*>(&node);
  return loss != nullptr && loss->reduction == at::Reduction::Mean;
}

bool is_mean(const Node& node) {
  return dynamic_cast<const graph::MeanBackward0*>(&node) != nullptr ||
         averages<graph::NllLossBackward0>(node) || averages<graph::NllLoss2DBackward0>(node) ||
         averages<graph::MseLossBackward0>(node) ||
         averages<graph::BinaryCrossEntropyBackward0>(node) ||
         averages<graph::BinaryCrossEntropyWithLogitsBackward0>(node) ||
         averages<graph::SmoothL1LossBackward0>(node) ||
         averages<graph::HuberLossBackward0>(node) ||
         averages<graph::SoftMarginLossBackward0>(node) ||
         averages<graph::MultiMarginLossBackward0>(node) ||
         averages<graph::MultilabelMarginLossBackward0>(node);
}

/// Of the first mean that a sum of losses has.
std::optional<std::int64_t> rows_of_sum(std::vector<const Node*> losses) {
  while (!losses.empty()) {
    const auto* const loss = losses.back();
    losses.pop_back();
    const bool adds = dynamic_cast<const graph::AddBackward0*>(loss) != nullptr;
    if (!is_number(*loss) || (!adds && !is_mean(*loss))) continue;
    for (const auto& edge : loss->next_edges()) {
      if (!edge.is_valid()) continue;
      if (adds) {
        losses.push_back(edge.function.get());
      } else if (const auto rows = rows_of(*edge.function, edge.input_nr)) {
        return rows;
      }
    }
  }
  return {};
}

}  // namespace

std::optional<std::int64_t> batch_rows() {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return {};
  // Where one loss is run backward, torch lists what it is made of alone.
  std::unordered_set<const Node*> inner;
  for (const auto* const node : *nodes) {
    for (const auto& edge : node->next_edges()) inner.insert(edge.function.get());
  }
  std::vector<const Node*> first;
  for (const auto* const node : *nodes) {
    if (!inner.contains(node)) first.push_back(node);
  }
  if (first.empty()) return {};
  std::ranges::sort(first, {}, [](const Node* node) { return node->sequence_nr(); });
  if (!std::ranges::all_of(first, [](const Node* node) { return is_number(*node); })) {
    return rows_of(*first.front(), 0);
  }
  // One number: the loss is a multiple of it.
  return first.size() == 1 ? std::nullopt : rows_of_sum(std::move(first));
}

}  // namespace tutti
