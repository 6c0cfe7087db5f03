#include "torch/model/loss_weight.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace tutti {
namespace {

using torch::autograd::AccumulateGrad;

thread_local const LossWeightScope* innermost = nullptr;

/// What was found for the last backward of the thread, whose graph stays what it is.
struct Found {
  int backward = -1;
  const LossWeightScope* scope = nullptr;
  LossWeight weight;
};
thread_local Found found;

void add(LossWeight& all, const std::shared_ptr<GradientSink>& sink) {
  for (const auto& weak : all.sinks) {
    if (weak.lock() == sink) return;
  }
  const auto weight = sink->loss_weight();
  if (!weight) return;
  const auto first = all.sinks.empty() ? nullptr : all.sinks.front().lock();
  all.sinks.push_back(sink);
  if (first == nullptr) {
    all.value = *weight;
  } else if (*weight != all.value) {
    all.refuse(fmt::format(
        "a backward through an operation (tutti/ops.h) comes to parameters of {} and of {}, whose "
        "losses count {} and {}: its gradients cannot be right for both; call next_weight() of "
        "both "
        "with the same weight before it",
        first->loss_label(), sink->loss_label(), all.value, *weight));
  }
}

/// Leaves of the graph that is run backward are the parameters that it comes to.
LossWeight of_graph(LossWeight all) {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return all;
  for (auto* const node : *nodes) {
    if (node->num_outputs() != 0) continue;
    const auto* const leaf = dynamic_cast<const AccumulateGrad*>(node);
    if (leaf == nullptr) continue;
    if (const auto sink = ParameterHooks::sink_of(leaf->variable)) add(all, sink);
  }
  return all;
}

}  // namespace

LossWeightScope::LossWeightScope(LossWeight weight)
    : weight_(std::move(weight)), outer_(std::exchange(innermost, this)) {}

LossWeightScope::~LossWeightScope() { innermost = outer_; }

const LossWeight& current_loss_weight() {
  const int backward = current_backward();
  if (backward < 0 || backward != found.backward || found.scope != innermost) {
    found = {backward, innermost, of_graph(innermost ? innermost->weight_ : LossWeight())};
  }
  return found.weight;
}

}  // namespace tutti
