#include "tutti/recompute.h"

#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/helper_thread.h"
#include "torch/model/graph_node.h"
#include "torch/model/loss_weight.h"
#include "torch/model/without_hooks.h"
#include "torch/recompute/fingerprints.h"
#include "torch/recompute/kept_state.h"
#include "torch/recompute/result_memory.h"
#include "torch/recompute/segment_devices.h"
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
  TensorList outputs = {};
  TensorList leaves = {};
  std::vector<c10::Device> devices = {};  ///< besides the CPU
  bool has_backward = false;              ///< in another thread
};

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
/// keeps of it leads there, and `watch` sees it.
Run run(const Segment& segment, const TensorList& inputs, const WriteWatch* watch) {
  auto [entered, entrance] = enter(segment, inputs, /*is_first=*/watch != nullptr);
  Run made{.inputs = std::move(entered)};
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
  const auto others = watch != nullptr ? watch->threads() : ThreadStarts();
  made.has_backward = others.size() > 1;
  auto found = start.found(made.outputs, entrance.get(), others, segment.options.name);
  made.leaves = std::move(found.leaves);
  made.devices = std::move(found.devices);
  for (const auto* const tensors : {&made.inputs, &made.outputs}) {
    for (const auto device : devices_of(*tensors)) made.devices.push_back(device);
  }
  return made;
}

/// What the second run has to agree with.
struct First {
  std::vector<Fingerprint> results;
  torch::Tensor digests;  ///< of those on a device
  ResultMemory memory;
  std::vector<WrittenMemory> written;  ///< that outlives the run
  TensorList parameters;
  std::size_t own_leaves;             ///< made by the segment: no parameters
  std::optional<c10::Device> device;  ///< besides the CPU, where there is one
};

class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(Segment segment, KeptState state, const TensorList& inputs, First first)
      : segment_(std::move(segment)),
        state_(std::move(state)),
        results_(std::move(first.results)),
        digests_(std::move(first.digests)),
        memory_(std::move(first.memory)),
        written_(std::move(first.written)),
        own_leaves_(first.own_leaves) {
    // A thread of the device's runs it, while that of the program waits.
    if (first.device) program_ = ProgramThread::own();
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
    std::optional<WorksFor> works;
    if (program_) works.emplace(*program_);
    const OneSegmentAtATime alone;
    const RestoredMemory outside(written_);
    const KeptState::Restored restored(state_, segment_.options.modules);
    const c10::AutoGradMode recorded(true);
    const auto again = run(segment_, inputs, /*watch=*/nullptr);
    require_the_same(again, parameters);
    DigestComparison comparison(digests_, digests_on_device(again.outputs, results_));
    auto result = gradients_of(again, parameters, std::move(gradients));
    // The device has work until here: the wait leaves it no gap.
    if (const auto digest = comparison.difference()) refuse_result(with_digest(*digest));
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
  variable_list gradients_of(const Run& again, const TensorList& parameters,
                             variable_list gradients) {
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
    const auto inputs = again.inputs.size();
    for (std::size_t i = 0; i < inputs; ++i) want(again.inputs[i], i);
    for (std::size_t p = 0; p < parameters.size(); ++p) want(parameters[p], inputs + p);
    variable_list result(inputs + parameters.size());
    if (ends.empty() || wanted.empty()) return result;
    // Tensor hooks fire on the whole gradient, in the outer graph: not on what one segment gives.
    const WithoutHooks quiet(parameters);
    const LossWeightScope as_outside(current_loss_weight());
    auto found = torch::autograd::grad(ends, wanted, given, /*retain_graph=*/false,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t w = 0; w < wanted.size(); ++w) result[places[w]] = std::move(found[w]);
    return result;
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& other_cause = "") const {
    throw InvalidArgument(error_of(
        segment_,
        "run again, the segment " + what +
            ": it draws from a generator that is not among the options, or reads what has changed "
            "since" +
            other_cause));
  }
  [[noreturn]] void refuse_result(std::size_t o) const {
    refuse(fmt::format("gives another result {}", o));
  }
  /// Which result has that one of the digests on a device.
  std::size_t with_digest(std::size_t digest) const {
    std::size_t o = 0;
    for (;; ++o) {
      if (results_[o].is_on_device() && results_[o].place == o && digest-- == 0) return o;
    }
  }
  void require_the_same(const Run& again, const TensorList& parameters) const {
    if (again.outputs.size() != results_.size()) {
      refuse(fmt::format("gives {} tensors, at first {}", again.outputs.size(), results_.size()));
    }
    const auto found = fingerprints_of(again.outputs, again.inputs);
    for (std::size_t o = 0; o < results_.size(); ++o) {
      if (found[o] != results_[o]) refuse_result(o);
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
  std::optional<ProgramThread> program_;
  std::vector<Fingerprint> results_;
  torch::Tensor digests_;
  ResultMemory memory_;
  std::vector<WrittenMemory> written_;
  std::size_t own_leaves_;
  std::vector<SavedVariable> inputs_;
  std::vector<SavedVariable> parameters_;
};

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
  require_kind(inputs, "input", own.options.name);
  KeptState state(devices_of(inputs), own.options.generators, own.options.name);
  std::vector<WrittenMemory> written;
  const auto watched = [&] {
    WriteWatch watch;
    auto once = run(own, inputs, &watch);
    written = watch.take();
    return once;
  };
  auto made = watched();
  require_kind(made.outputs, "result", own.options.name);
  const auto device = one_device(made.devices, own.options.name);
  const auto computed = fingerprints_of(made.outputs, made.inputs);
  First first{.results = computed,
              .digests = digests_on_device(made.outputs, computed),
              .memory = ResultMemory(made.outputs, inputs),
              .written = {},
              .parameters = {},
              .own_leaves = 0,
              .device = device};
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
  if (device && made.has_backward) pass_through_thread_of(*device);
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
  // The thread and the stream of a node are those of its results' gradients: one that nobody gives.
  if (device && node->device() != *device) {
    node->add_input_metadata(torch::empty({0}, torch::TensorOptions(*device)));
  }
  return results;
}

}  // namespace tutti
