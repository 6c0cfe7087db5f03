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
#include "torch/recompute/kept_state.h"
#include "torch/recompute/segment_graph.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

struct Segment {
  RecomputeOptions options;
  std::function<TensorList(const TensorList&)> run;
};

/// One run of a segment with its graph, on leaves of its own.
struct Run {
  TensorList inputs;
  TensorList outputs;
  TensorList parameters;
};

/// What a result has to be again.
struct Fingerprint {
  bool needs_gradient;
  std::uint64_t bytes;
  std::vector<std::int64_t> sizes;
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint_of(const torch::Tensor& result) {
  if (!result.defined()) return {};
  const auto dense = result.detach().contiguous();
  return {result.requires_grad(),
          digest(dense.const_data_ptr(), dense.nbytes(),
                 static_cast<std::uint64_t>(result.scalar_type())),
          result.sizes().vec()};
}

std::string error_of(const Segment& segment, const std::string& what) {
  return fmt::format("recompute \"{}\": {}", segment.options.name, what);
}

/// With gradients recorded.
Run run(const Segment& segment, const TensorList& inputs) {
  Run made;
  std::vector<std::uint32_t> versions;
  for (const auto& input : inputs) {
    made.inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad())
                                          : input);
    versions.push_back(input.defined() ? input._version() : 0);
  }
  // A weight that was cast outside is a tensor from outside.
  const bool casts_are_kept = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(false);
  const auto give_back =
      c10::make_scope_exit([&] { at::autocast::set_autocast_cache_enabled(casts_are_kept); });
  const SegmentStart start;
  try {
    made.outputs = segment.run(made.inputs);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("in-place operation") == std::string::npos) throw;
    throw InvalidArgument(
        error_of(segment,
                 "the segment changes an input in place, which it would find changed when it runs "
                 "again: " +
                     text));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i]._version() == versions[i]) continue;
    throw InvalidArgument(error_of(
        segment, fmt::format("the segment changes input {} in place, which it would find changed "
                             "when it runs again",
                             i)));
  }
  made.parameters = start.leaves(made.outputs, made.inputs, segment.options.name);
  return made;
}

/// Tensor hooks fire on the whole gradient, in the outer graph: not on what one segment gives.
class WithoutHooks {
 public:
  explicit WithoutHooks(TensorList parameters) : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      auto& own = torch::autograd::impl::hooks(parameter);
      taken_.push_back(std::move(own));
      own.clear();
    }
  }
  ~WithoutHooks() {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      torch::autograd::impl::hooks(parameters_[p]) = std::move(taken_[p]);
    }
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  TensorList parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> taken_;
};

class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(Segment segment, KeptState state, const TensorList& inputs, const Run& first)
      : segment_(std::move(segment)), state_(std::move(state)) {
    for (const auto& input : inputs) inputs_.emplace_back(input, false);
    for (const auto& parameter : first.parameters) parameters_.emplace_back(parameter, false);
    for (const auto& output : first.outputs) results_.push_back(fingerprint_of(output));
    auto edges = torch::autograd::collect_next_edges(inputs);
    auto others = torch::autograd::collect_next_edges(first.parameters);
    edges.insert(edges.end(), others.begin(), others.end());
    set_next_edges(std::move(edges));
  }

  variable_list apply(variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw Unsupported(error_of(segment_, "a second derivative (create_graph)"));
    }
    const auto inputs = unpacked(inputs_);
    const auto parameters = unpacked(parameters_);
    const KeptState::Restored restored(state_, segment_.options.modules);
    const c10::AutoGradMode recorded(true);
    const auto again = run(segment_, inputs);
    require_the_same(again, parameters);
    TensorList ends;
    TensorList given;
    for (std::size_t o = 0, next = 0; o < again.outputs.size(); ++o) {
      if (!results_[o].needs_gradient) continue;
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
    const WithoutHooks quiet(parameters);
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
    const auto refuse = [&](const std::string& what) {
      throw InvalidArgument(error_of(
          segment_, "run again, the segment " + what +
                        ": it draws from a generator that is not among the options, or reads what "
                        "has changed since"));
    };
    if (again.outputs.size() != results_.size()) {
      refuse(fmt::format("gives {} tensors, at first {}", again.outputs.size(), results_.size()));
    }
    for (std::size_t o = 0; o < results_.size(); ++o) {
      if (fingerprint_of(again.outputs[o]) != results_[o]) {
        refuse(fmt::format("gives another result {}", o));
      }
    }
    const bool same = std::ranges::is_permutation(
        again.parameters, parameters,
        [](const torch::Tensor& one, const torch::Tensor& other) { return one.is_same(other); });
    if (!same) refuse("uses other parameters");
  }

  Segment segment_;
  KeptState state_;
  std::vector<SavedVariable> inputs_;
  std::vector<SavedVariable> parameters_;
  std::vector<Fingerprint> results_;
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

}  // namespace

TensorList recompute_list(RecomputeOptions options,
                          std::function<TensorList(const TensorList&)> segment,
                          const TensorList& inputs) {
  if (!c10::GradMode::is_enabled()) return segment(inputs);
  Segment own{std::move(options), std::move(segment)};
  require_kind(own, inputs, "input");
  KeptState state(own.options.generators, own.options.name);
  const auto first = run(own, inputs);
  require_kind(own, first.outputs, "result");
  TensorList results;
  for (const auto& output : first.outputs) {
    results.push_back(output.defined() ? output.detach() : output);
  }
  const auto node = make_graph_node<RecomputeNode>(std::move(own), std::move(state), inputs, first);
  for (std::size_t o = 0; o < results.size(); ++o) {
    if (results[o].defined() && first.outputs[o].requires_grad()) {
      torch::autograd::set_history(results[o], node);
    }
  }
  return results;
}

}  // namespace tutti
