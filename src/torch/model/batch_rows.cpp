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

/// The shape of a node's result; null where it has none, or a nested one.
std::optional<c10::SymIntArrayRef> shape_of(const Node& node, std::uint32_t result) {
  if (result >= node.num_inputs()) return {};
  const auto& made = node.input_metadata(result);
  if (made.is_nested_tensor()) return {};
  return made.shape_as_dim_vector();
}

/// A parameter's rows are no batch.
std::optional<std::int64_t> rows_of(const Node& node, std::uint32_t result) {
  if (node.num_outputs() == 0) return {};
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

bool is_loss(const Node& node) {
  return averages<graph::NllLossBackward0>(node) || averages<graph::NllLoss2DBackward0>(node) ||
         averages<graph::MseLossBackward0>(node) ||
         averages<graph::BinaryCrossEntropyBackward0>(node) ||
         averages<graph::BinaryCrossEntropyWithLogitsBackward0>(node) ||
         averages<graph::SmoothL1LossBackward0>(node) ||
         averages<graph::HuberLossBackward0>(node) ||
         averages<graph::SoftMarginLossBackward0>(node) ||
         averages<graph::MultiMarginLossBackward0>(node) ||
         averages<graph::MultilabelMarginLossBackward0>(node);
}

template <class... Kinds>
bool is_any(const Node& node) {
  return (... || (dynamic_cast<const Kinds*>(&node) != nullptr));
}

std::optional<std::int64_t> rows_of_input(const Node& node) {
  for (const auto& edge : node.next_edges()) {
    if (edge.is_valid()) return rows_of(*edge.function, edge.input_nr);
  }
  return {};
}

/// The rows of a loss that is the sum of `open`: parts with a factor are passed over.
std::optional<std::int64_t> rows_of_sum(std::vector<const Node*> open) {
  const Node* loss = nullptr;
  const Node* mean = nullptr;
  const auto take_first = [](const Node*& first, const Node* node) {
    if (first == nullptr || node->sequence_nr() < first->sequence_nr()) first = node;
  };
  while (!open.empty()) {
    const auto* const part = open.back();
    open.pop_back();
    if (!is_number(*part)) continue;
    if (is_any<graph::AddBackward0, graph::AddBackward1>(*part)) {
      for (const auto& edge : part->next_edges()) {
        if (edge.is_valid()) open.push_back(edge.function.get());
      }
    } else if (is_loss(*part)) {
      take_first(loss, part);
    } else if (is_any<graph::MeanBackward0>(*part)) {
      if (rows_of_input(*part)) take_first(mean, part);
    } else if (!is_any<graph::MulBackward0, graph::MulBackward1, graph::DivBackward0,
                       graph::DivBackward1, graph::SumBackward0>(*part)) {
      return {};  // what torch does not list may be a product
    }
  }
  const auto* const first = loss != nullptr ? loss : mean;
  return first == nullptr ? std::nullopt : rows_of_input(*first);
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
