#include "torch/pipeline/stage_graph.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "torch/model/graph_node.h"

namespace tutti {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

void run_engine(const edge_list& roots, const variable_list& gradients, bool keep_graph,
                const edge_list& outputs) {
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, outputs);
}

bool has_hooks(Node* node) {
  return !node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() ||
         !node->post_hooks().empty() || !node->retains_grad_hooks().empty();
}

/// Its backward, or a hook of the program's, would run in both halves; or it cannot leave the
/// gradient of its input out.
bool is_whole(Node* node) {
  // A Function of somebody's own, as a segment that runs again, computes all at once. libtorch
  // 2.13's group norm crashes without the gradient of an input that is channels-last.
  return !node->is_traceable() || has_hooks(node) || node->name() == "NativeGroupNormBackward0";
}

bool is_parameter(const Node* node) { return dynamic_cast<const AccumulateGrad*>(node) != nullptr; }

/// The nodes behind some, each after those behind it.
std::vector<Node*> sorted_nodes(const edge_list& roots) {
  std::vector<Node*> sorted;
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, std::size_t>> path;  // and the next of its edges
  const auto reach = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) path.emplace_back(node, 0);
  };
  for (const auto& root : roots) {
    reach(root.function.get());
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        reach(node->next_edge(next++).function.get());
        continue;
      }
      sorted.push_back(node);
      path.pop_back();
    }
  }
  return sorted;
}

}  // namespace

/// Keeps what comes to a node in the first half of a backward.
class StageGraph::Arrival : public torch::autograd::FunctionPreHook {
 public:
  explicit Arrival(const std::shared_ptr<variable_list>& arrived) : arrived_(arrived) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto arrived = arrived_.lock()) *arrived = gradients;
    return gradients;
  }

 private:
  std::weak_ptr<variable_list> arrived_;  ///< gone in the second half
};

/// A node that is through in the first half keeps nothing for the second one.
class StageGraph::Release : public torch::autograd::FunctionPostHook {
 public:
  explicit Release(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& results, const variable_list&) override {
    node_.release_variables();
    return results;
  }

 private:
  Node& node_;
};

/// Where gradients of what has entered a stage end.
class StageGraph::Entrance : public Node {
 public:
  variable_list apply(variable_list&& gradients) override {
    found = std::move(gradients);
    return {};
  }
  std::string name() const override { return "tutti::StageEntrance"; }
  TensorList found;
};

/// What the second half of a backward begins with: nodes that parameters hang on.
struct StageGraph::Halves {
  struct Part {
    Edge node;
    std::shared_ptr<variable_list> arrived = {};
    std::vector<std::size_t> ways_in = {};  ///< edges to what the first half has been through
  };
  /// The second half goes no way of the first one again.
  void close_ways_in() {
    for (const auto& part : parts) {
      auto& edges = part.node.function->next_edges();
      for (const auto edge : part.ways_in) edges[edge] = Edge();
    }
  }
  std::vector<Part> parts;
  edge_list early;  ///< parameters of the first half
  edge_list late;
};

struct StageGraph::Impl {
  decltype(Edge::function) entrance;
  std::vector<std::uint8_t> need_gradient;
  TensorList input_gradients;
  edge_list results;               ///< by result; invalid where it needs no gradient
  std::optional<Halves> halves;    ///< while the second half is to come
  std::optional<TensorList> kept;  ///< … of a stage that nothing with a gradient enters
  std::vector<ParameterGradient> more;

  Entrance* entered() const { return static_cast<Entrance*>(entrance.get()); }
  /// `also` and `more` are parameters of the first half.
  Halves cut(const TensorList& also, const std::vector<ParameterGradient>& more) const;
  void collect_input_gradients();
  std::pair<edge_list, variable_list> roots(const TensorList& gradients,
                                            const std::vector<ParameterGradient>& from) const;
};

StageGraph::StageGraph() : impl_(std::make_unique<Impl>()) {}
StageGraph::~StageGraph() = default;
StageGraph::StageGraph(StageGraph&&) noexcept = default;
StageGraph& StageGraph::operator=(StageGraph&&) noexcept = default;

TensorList StageGraph::enter(const TensorList& values,
                             const std::vector<std::uint8_t>& need_gradient) {
  impl_->need_gradient = need_gradient;
  impl_->input_gradients.assign(values.size(), {});
  TensorList entered;
  for (std::size_t i = 0; i < values.size(); ++i) {
    entered.push_back(values[i].defined() ? values[i].detach() : values[i]);
    if (need_gradient[i] == 0) continue;
    if (impl_->entrance == nullptr) impl_->entrance = make_graph_node<Entrance>();
    torch::autograd::set_history(entered.back(), impl_->entrance);
  }
  return entered;
}

void StageGraph::leave(const TensorList& results) {
  for (const auto& result : results) {
    const bool has_gradient = result.defined() && result.requires_grad();
    impl_->results.push_back(has_gradient ? torch::autograd::impl::gradient_edge(result) : Edge());
  }
  look_through();
}

void StageGraph::look_through() {
  for (auto* const node : sorted_nodes(impl_->results)) {
    if (const auto* const leaf = dynamic_cast<AccumulateGrad*>(node)) {
      parameters_.push_back(leaf->variable);
    }
    const auto* const entrance = dynamic_cast<Entrance*>(node);
    reaches_elsewhere_ =
        reaches_elsewhere_ || (entrance != nullptr && entrance != impl_->entrance.get());
  }
}

std::pair<edge_list, variable_list> StageGraph::Impl::roots(
    const TensorList& gradients, const std::vector<ParameterGradient>& from) const {
  std::pair<edge_list, variable_list> all;
  TUTTI_CHECK(gradients.size() == results.size(), "{} gradients of {} results", gradients.size(),
              results.size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!results[r].is_valid() || !gradients[r].defined()) continue;
    all.first.push_back(results[r]);
    all.second.push_back(gradients[r]);
  }
  for (const auto& [parameter, gradient] : from) {
    all.first.push_back(torch::autograd::impl::gradient_edge(parameter));
    all.second.push_back(gradient);
  }
  return all;
}

void StageGraph::Impl::collect_input_gradients() {
  if (entrance == nullptr) return;
  auto& found = entered()->found;
  std::size_t next = 0;
  for (std::size_t i = 0; i < input_gradients.size(); ++i) {
    if (need_gradient[i] == 0) continue;
    if (next < found.size()) input_gradients[i] = std::move(found[next]);
    ++next;
  }
  found.clear();
}

void StageGraph::backward(const TensorList& gradients, const std::vector<ParameterGradient>& more) {
  const auto [roots, values] = impl_->roots(gradients, more);
  run_engine(roots, values, /*keep_graph=*/false, {});
  impl_->collect_input_gradients();
  impl_->results.clear();
}

TensorList StageGraph::take_input_gradients() { return std::move(impl_->input_gradients); }

/// A node between results and what has entered computes the gradients of both sides apart: those
/// of a parameter that hangs on such nodes alone can wait. Its sum has the order of the whole
/// backward: in both the engine takes nodes from the last one of forward to the first.
StageGraph::Halves StageGraph::Impl::cut(const TensorList& also,
                                         const std::vector<ParameterGradient>& from) const {
  const auto sorted = sorted_nodes(results);
  std::unordered_set<const Node*> early;
  for (const auto& parameter : also) {
    early.insert(torch::autograd::impl::gradient_edge(parameter).function.get());
  }
  std::unordered_set<const Node*> leads_in;  // to what has entered
  // What each node that does not lead in leads to.
  std::unordered_map<const Node*, std::set<Node*>> parameters_of;
  std::unordered_map<Node*, std::set<Node*>> hanging;  // by the node that leads in
  std::unordered_map<Node*, std::set<Node*>> on;       // by parameter; null: it cannot wait
  for (auto* const node : sorted) {
    bool leads = node == entrance.get() || early.contains(node);
    for (const auto& edge : node->next_edges()) {
      leads = leads || leads_in.contains(edge.function.get());
    }
    if (leads) leads_in.insert(node);
    if (is_parameter(node) && !leads) parameters_of[node].insert(node);
    for (const auto& edge : node->next_edges()) {
      const auto found = parameters_of.find(edge.function.get());
      if (found == parameters_of.end()) continue;
      const auto below = found->second;
      (leads ? hanging[node] : parameters_of[node]).insert(below.begin(), below.end());
    }
    if (leads || is_parameter(node) || !has_hooks(node)) continue;
    for (auto* const parameter : parameters_of[node]) on[parameter].insert(nullptr);
  }
  for (const auto& [node, parameters] : hanging) {
    for (auto* const parameter : parameters) on[parameter].insert(node);
  }
  // What later stages have found is the first term of a parameter's sum.
  for (const auto& [parameter, gradient] : from) {
    on[torch::autograd::impl::gradient_edge(parameter).function.get()].insert(nullptr);
  }
  for (const auto& result : results) {
    const auto found = parameters_of.find(result.function.get());
    if (found == parameters_of.end()) continue;
    for (auto* const parameter : found->second) on[parameter].insert(nullptr);
  }
  std::unordered_map<const Node*, Edge> edges;  // which keep their nodes
  for (auto* const node : sorted) {
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) edges.try_emplace(edge.function.get(), Edge(edge.function, 0));
    }
  }
  for (const auto& result : results) {
    if (result.is_valid()) edges.try_emplace(result.function.get(), Edge(result.function, 0));
  }
  Halves halves;
  std::unordered_set<const Node*> waiting;
  for (auto* const parameter : sorted) {
    if (!is_parameter(parameter)) continue;
    const auto& nodes = on[parameter];
    const bool is_late = !nodes.empty() && std::ranges::none_of(nodes, [](Node* node) {
      return node == nullptr || is_whole(node);
    });
    (is_late ? halves.late : halves.early).push_back(edges.at(parameter));
    if (!is_late) continue;
    for (const auto* const node : nodes) {
      if (waiting.insert(node).second) halves.parts.push_back({.node = edges.at(node)});
    }
  }
  for (auto& part : halves.parts) {
    part.arrived = std::make_shared<variable_list>();
    auto& node = *part.node.function;
    node.add_pre_hook(std::make_unique<Arrival>(part.arrived));
    for (std::size_t edge = 0; edge < node.num_outputs(); ++edge) {
      if (leads_in.contains(node.next_edge(edge).function.get())) part.ways_in.push_back(edge);
    }
  }
  for (auto* const node : sorted) {
    if (!leads_in.contains(node) || waiting.contains(node) || is_parameter(node)) continue;
    if (node != entrance.get()) node->add_post_hook(std::make_unique<Release>(*node));
  }
  return halves;
}

void StageGraph::backward_inputs(const TensorList& gradients,
                                 const std::vector<ParameterGradient>& more,
                                 const TensorList& also) {
  if (impl_->entrance == nullptr && also.empty()) {
    impl_->kept = gradients;  // nobody waits for any of it
    impl_->more = more;
    return;
  }
  impl_->halves = impl_->cut(also, more);
  auto [roots, values] = impl_->roots(gradients, more);
  auto outputs = impl_->halves->early;
  for (std::uint32_t k = 0; impl_->entrance != nullptr && k < impl_->entrance->num_inputs(); ++k) {
    outputs.emplace_back(impl_->entrance, k);
  }
  run_engine(roots, values, /*keep_graph=*/true, outputs);
  impl_->collect_input_gradients();
  impl_->results.clear();
  impl_->halves->close_ways_in();
}

void StageGraph::backward_weights() {
  if (impl_->kept) {
    const auto gradients = std::move(*impl_->kept);
    impl_->kept.reset();
    return backward(gradients, std::exchange(impl_->more, {}));
  }
  TUTTI_CHECK(impl_->halves.has_value(), "the second half of a backward without the first");
  auto halves = std::move(*impl_->halves);
  impl_->halves.reset();
  edge_list roots;
  variable_list values;
  for (auto& part : halves.parts) {
    const auto arrived = std::move(part.arrived);
    for (std::uint32_t k = 0; k < arrived->size(); ++k) {
      if (!(*arrived)[k].defined()) continue;
      roots.emplace_back(part.node.function, k);
      values.push_back(std::move((*arrived)[k]));
    }
  }
  run_engine(roots, values, /*keep_graph=*/false, halves.late);
}

}  // namespace tutti
