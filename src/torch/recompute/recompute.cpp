#include "tutti/recompute.h"

#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/hash.h"
#include "torch/model/graph_node.h"
#include "torch/model/loss_weight.h"
#include "torch/model/resolved.h"
#include "torch/model/without_hooks.h"
#include "torch/recompute/kept_state.h"
#include "torch/recompute/result_memory.h"
#include "torch/recompute/segment_graph.h"
#include "torch/recompute/written_memory.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct Segment {
  RecomputeOptions options;
  std::function<TensorList(const TensorList&)> run;
};

/// One run of a segment with its graph, on tensors of its own.
struct Run {
  TensorList inputs;
  TensorList outputs;
  TensorList leaves;
};

/// What a result has to be again.
struct Fingerprint {
  bool is_computed;   ///< with a gradient that goes back through the segment
  std::size_t place;  ///< of the first result that is this very tensor
  std::uint64_t bytes;
  std::vector<std::int64_t> sizes;
  bool operator==(const Fingerprint&) const = default;
};

std::size_t place_of(const torch::Tensor& tensor, const TensorList& all) {
  const auto is_it = [&](const torch::Tensor& one) { return one.is_same(tensor); };
  return static_cast<std::size_t>(std::ranges::find_if(all, is_it) - all.begin());
}

std::vector<Fingerprint> fingerprints_of(const Run& run) {
  std::vector<Fingerprint> all;
  for (const auto& result : run.outputs) {
    const auto place = place_of(result, run.outputs);
    if (place < all.size()) {
      all.push_back(all[place]);
    } else if (!result.defined()) {
      all.push_back({.is_computed = false, .place = place, .bytes = 0, .sizes = {}});
    } else {
      // A leaf that is no input has its gradient from outside the segment: it is returned as it is.
      const bool is_input = place_of(result, run.inputs) < run.inputs.size();
      const auto dense = resolved(result.detach()).contiguous();
      all.push_back({.is_computed = result.requires_grad() && (is_input || !result.is_leaf()),
                     .place = place,
                     .bytes = digest(dense.const_data_ptr(), dense.nbytes(),
                                     static_cast<std::uint64_t>(result.scalar_type())),
                     .sizes = result.sizes().vec()});
    }
  }
  return all;
}

std::string error_of(const Segment& segment, const std::string& what) {
  return fmt::format("recompute \"{}\": {}", segment.options.name, what);
}

/// Inputs as the segment gets them, and where the gradients of those that need one leave its graph.
struct Entered {
  TensorList inputs;
  decltype(torch::autograd::Edge::function) entrance;
};

Entered enter(const Segment& segment, const TensorList& inputs, bool is_first) {
  Entered entered;
  std::vector<std::size_t> learning;
  torch::autograd::edge_list edges;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    entered.inputs.push_back(inputs[i].defined() ? inputs[i].detach() : inputs[i]);
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    learning.push_back(i);
    if (is_first) edges.push_back(torch::autograd::impl::gradient_edge(inputs[i]));
  }
  if (learning.empty()) return entered;
  entered.entrance =
      make_graph_node<SegmentEntrance>(segment.options.name, learning, std::move(edges));
  for (const auto i : learning) {
    torch::autograd::set_history(entered.inputs[i], entered.entrance);
  }
  return entered;
}

/// With gradients recorded. The graph of the first run is one with the program's: what a segment
/// keeps of it leads there.
Run run(const Segment& segment, const TensorList& inputs, bool is_first) {
  auto [entered, entrance] = enter(segment, inputs, is_first);
  Run made{.inputs = std::move(entered), .outputs = {}, .leaves = {}};
  std::vector<std::uint32_t> versions;
  for (const auto& input : inputs) versions.push_back(input.defined() ? input._version() : 0);
  // A weight that was cast outside is a tensor from outside.
  const bool casts_are_kept = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(false);
  const auto give_back =
      c10::make_scope_exit([&] { at::autocast::set_autocast_cache_enabled(casts_are_kept); });
  const SegmentStart start;
  made.outputs = segment.run(made.inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i]._version() == versions[i]) continue;
    throw InvalidArgument(error_of(
        segment, fmt::format("the segment changes input {} in place, which it would find changed "
                             "when it runs again",
                             i)));
  }
  made.leaves = start.leaves(made.outputs, entrance.get(), segment.options.name);
  return made;
}

/// What the second run has to agree with.
struct First {
  std::vector<Fingerprint> results;
  ResultMemory memory;
  std::vector<WrittenMemory> written;  ///< that outlives the run
  TensorList parameters;
  std::size_t own_leaves;  ///< made by the segment: no parameters
};

class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(Segment segment, KeptState state, const TensorList& inputs, First first)
      : segment_(std::move(segment)),
        state_(std::move(state)),
        results_(std::move(first.results)),
        memory_(std::move(first.memory)),
        written_(std::move(first.written)),
        own_leaves_(first.own_leaves) {
    for (const auto& input : inputs) inputs_.emplace_back(input, false);
    for (const auto& parameter : first.parameters) parameters_.emplace_back(parameter, false);
    auto edges = torch::autograd::collect_next_edges(inputs);
    auto others = torch::autograd::collect_next_edges(first.parameters);
    edges.insert(edges.end(), others.begin(), others.end());
    set_next_edges(std::move(edges));
  }

  variable_list apply(variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported(error_of(segment_, "a second derivative (create_graph)"));
    }
    memory_.require_unchanged(segment_.options.name);
    const auto inputs = unpacked(inputs_);
    const auto parameters = unpacked(parameters_);
    const RestoredMemory outside(written_);
    const KeptState::Restored restored(state_, segment_.options.modules);
    const c10::AutoGradMode recorded(true);
    const auto again = run(segment_, inputs, /*is_first=*/false);
    require_the_same(again, parameters);
    TensorList ends;
    TensorList given;
    for (std::size_t o = 0, next = 0; o < again.outputs.size(); ++o) {
      if (!results_[o].is_computed || results_[o].place != o) continue;
      auto& gradient = gradients.at(next++);
      if (!gradient.defined()) continue;
      ends.push_back(again.outputs[o]);
      given.push_back(std::move(gradient));
    }
    TensorList wanted;
    std::vector<std::size_t> places;
    const auto want = [&](const torch::Tensor& leaf, std::size_t place) {
      if (!leaf.defined() || !leaf.requires_grad() || !task_should_compute_output(place)) return;
      wanted.push_back(leaf);
      places.push_back(place);
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) want(again.inputs[i], i);
    for (std::size_t p = 0; p < parameters.size(); ++p) want(parameters[p], inputs.size() + p);
    variable_list result(inputs.size() + parameters.size());
    if (ends.empty() || wanted.empty()) return result;
    // Tensor hooks fire on the whole gradient, in the outer graph: not on what one segment gives.
    const WithoutHooks quiet(parameters);
    const LossWeightScope as_outside(current_loss_weight());
    auto found = torch::autograd::grad(ends, wanted, given, /*retain_graph=*/false,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t w = 0; w < wanted.size(); ++w) result[places[w]] = std::move(found[w]);
    return result;
  }
  void release_variables() override {
    for (auto* kept : {&inputs_, &parameters_}) {
      for (auto& variable : *kept) variable.reset_data();
    }
  }
  std::string name() const override { return "tutti::Recompute"; }

 private:
  static TensorList unpacked(const std::vector<SavedVariable>& kept) {
    TensorList all;
    for (const auto& variable : kept) all.push_back(variable.unpack());
    return all;
  }
  void require_the_same(const Run& again, const TensorList& parameters) const {
    const auto refuse = [&](const std::string& what, const std::string& other_cause = "") {
      throw InvalidArgument(error_of(
          segment_, "run again, the segment " + what +
                        ": it draws from a generator that is not among the options, or reads what "
                        "has changed since" +
                        other_cause));
    };
    if (again.outputs.size() != results_.size()) {
      refuse(fmt::format("gives {} tensors, at first {}", again.outputs.size(), results_.size()));
    }
    const auto found = fingerprints_of(again);
    for (std::size_t o = 0; o < results_.size(); ++o) {
      if (found[o] != results_[o]) refuse(fmt::format("gives another result {}", o));
    }
    const bool same = again.leaves.size() == parameters.size() + own_leaves_ &&
                      std::ranges::all_of(parameters, [&](const torch::Tensor& parameter) {
                        return place_of(parameter, again.leaves) < again.leaves.size();
                      });
    if (!same) {
      refuse("uses other parameters",
             ", or keeps a leaf that needs a gradient and is made inside the segment");
    }
  }

  Segment segment_;
  KeptState state_;
  std::vector<Fingerprint> results_;
  ResultMemory memory_;
  std::vector<WrittenMemory> written_;
  std::size_t own_leaves_;
  std::vector<SavedVariable> inputs_;
  std::vector<SavedVariable> parameters_;
};

void require_kind(const Segment& segment, const TensorList& tensors, const char* what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    if (!tensors[i].is_cpu()) {
      throw Unsupported(error_of(segment, fmt::format("{} {} is on {}, and not on the CPU", what, i,
                                                      tensors[i].device().str())));
    }
    if (tensors[i].layout() != torch::kStrided) {
      throw Unsupported(error_of(segment, fmt::format("{} {} is not dense", what, i)));
    }
  }
}

/// A segment's result without the segment's graph.
torch::Tensor without_graph(const torch::Tensor& result, bool is_computed) {
  // A result that has none stays the tensor it is: autograd knows its views, and a leaf's gradient.
  const bool has_none = !is_computed && (result.requires_grad() || !is_in_graph(result));
  return has_none ? result : result.detach();
}

}  // namespace

TensorList recompute_list(RecomputeOptions options,
                          std::function<TensorList(const TensorList&)> segment,
                          const TensorList& inputs) {
  if (!c10::GradMode::is_enabled()) return segment(inputs);
  Segment own{std::move(options), std::move(segment)};
  require_kind(own, inputs, "input");
  KeptState state(own.options.generators, own.options.name);
  std::vector<WrittenMemory> written;
  const auto watched = [&] {
    WriteWatch watch;
    auto once = run(own, inputs, /*is_first=*/true);
    written = watch.take();
    return once;
  };
  auto made = watched();
  require_kind(own, made.outputs, "result");
  First first{fingerprints_of(made), ResultMemory(made.outputs, inputs), {}, {}, 0};
  const auto computed = first.results;
  TensorList results;
  for (std::size_t o = 0; o < computed.size(); ++o) {
    const auto& output = made.outputs[o];
    if (computed[o].place < o) {
      // What changes one in place changes both, in autograd's eyes too.
      results.push_back(results[computed[o].place]);
    } else {
      results.push_back(without_graph(output, computed[o].is_computed));
    }
  }
  // A leaf that nothing holds when the run's graph is gone was made by the run.
  made.outputs.clear();
  made.inputs.clear();
  first.own_leaves =
      std::erase_if(made.leaves, [](const torch::Tensor& leaf) { return leaf.use_count() == 1; });
  first.parameters = std::move(made.leaves);
  // So was memory that is gone. Results are computed again.
  std::erase_if(written, [&](const WrittenMemory& one) {
    const auto storage = one.storage.lock();
    return storage.get() == nullptr ||
           std::ranges::any_of(results, [&](const torch::Tensor& result) {
             return result.defined() && result.has_storage() &&
                    result.storage().unsafeGetStorageImpl() == storage.get();
           });
  });
  first.written = std::move(written);
  const auto node =
      make_graph_node<RecomputeNode>(std::move(own), std::move(state), inputs, std::move(first));
  for (std::size_t o = 0; o < results.size(); ++o) {
    if (computed[o].is_computed && computed[o].place == o) {
      torch::autograd::set_history(results[o], node);
    }
  }
  return results;
}

}  // namespace tutti
