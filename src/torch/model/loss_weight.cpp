#include "torch/model/loss_weight.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "run/numbers/mean_weight.h"
#include "tutti/error.h"

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
    all.conflict = fmt::format(
        "a backward through an operation (tutti/ops.h) comes to parameters of {} and of {}, whose "
        "losses count {} and {}: its gradients cannot be right for both; call next_weight() of "
        "both with the same weight before it",
        first->loss_label(), sink->loss_label(), all.value, *weight);
  }
}

/// Leaves of the graph that is run backward are the parameters that it comes to. A backward for
/// some inputs, as torch::autograd::grad() runs, comes to no others, although they are in its
/// graph.
LossWeight of_graph(LossWeight all) {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return all;
  const auto& some = *torch::autograd::get_current_graph_task_exec_info();
  for (auto* const node : *nodes) {
    if (node->num_outputs() != 0) continue;
    const auto* const leaf = dynamic_cast<const AccumulateGrad*>(node);
    if (leaf == nullptr) continue;
    const auto wanted = some.find(node);
    if (!some.empty() && (wanted == some.end() || !wanted->second.should_execute())) continue;
    if (const auto sink = ParameterHooks::sink_of(leaf->variable)) add(all, sink);
  }
  return all;
}

std::string whose(std::optional<std::int64_t> shard) {
  return shard ? fmt::format("shard {}: ", *shard) : std::string();
}

void require_finite(double weight, std::optional<std::int64_t> shard) {
  if (std::isfinite(weight) && weight >= 0) return;
  throw InvalidArgument(
      fmt::format("{}a weight must be finite and not negative, not {}", whose(shard), weight));
}

}  // namespace

void require_weight(double weight, std::optional<std::int64_t> shard) {
  require_finite(weight, shard);
  if (weight <= kMostMeanWeight) return;
  throw InvalidArgument(fmt::format("{}a weight of {} is too large for sums in float64: at most {}",
                                    whose(shard), weight, kMostMeanWeight));
}

void require_loss_weight(double weight, std::optional<std::int64_t> shard) {
  constexpr double kLeast = 1e-15;
  constexpr double kMost = 1e15;
  require_finite(weight, shard);
  if (weight == 0 || (weight >= kLeast && weight <= kMost)) return;
  throw InvalidArgument(fmt::format(
      "{}a weight of {} is too {} for sums in float32: it must be 0, or between {:g} and {:g}; "
      "multiply all weights of the step by the same number, which changes no mean",
      whose(shard), weight, weight < 1 ? "small" : "large", kLeast, kMost));
}

bool is_zero(const torch::Tensor& gradient) {
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.count_nonzero().item<std::int64_t>() == 0;
}

namespace {

constexpr const char* kRemedy =
    "leave all weights at 1, and multiply each worker's loss by its rows · N ÷ all rows";

}  // namespace

torch::Tensor given_without_weight(const torch::Tensor& gradient, const std::string& operation) {
  const auto& weight = current_loss_weight();
  if (weight.owes() && !is_zero(gradient)) {
    weight.refuse(fmt::format(
        "{}: this worker's loss has a weight of 0, but gradients of other workers' losses go "
        "through it to other workers, and would be lost; {}",
        operation, kRemedy));
  }
  return torch::zeros_like(gradient);
}

torch::Tensor taken_without_weight(torch::Tensor gradient, const std::string& operation) {
  if (!is_zero(gradient)) current_loss_weight().owe(operation);
  return gradient;
}

void refuse_without_weight(const torch::Tensor& gradient, const std::string& operation) {
  if (is_zero(gradient)) return;
  current_loss_weight().refuse(fmt::format(
      "{}: this worker's loss has a weight of 0, but other workers' losses have a gradient of its "
      "parameters here, which cannot be told in units of this worker's loss; {}",
      operation, kRemedy));
}

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
