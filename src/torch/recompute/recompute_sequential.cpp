#include "tutti/recompute_sequential.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include "run/planning/memory_search.h"
#include "torch/recompute/kept_state.h"
#include "torch/recompute/memory_meter.h"
#include "tutti/error.h"
#include "tutti/recompute.h"
#include "tutti/share.h"

namespace tutti {
namespace {

std::uint64_t bytes_of(std::int64_t count) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, count));
}

std::vector<MemorySegment> equal_segments(std::int64_t layers, std::int64_t count) {
  std::vector<MemorySegment> segments;
  for (std::int64_t s = 0; s < count; ++s) {
    const auto [first, last] = share_of(layers, s, count);
    segments.push_back({first, last, true});
  }
  return segments;
}

double milliseconds_of(const std::function<void()>& body) {
  const auto begun = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun)
      .count();
}

/// Who keeps a tensor: itself, or its memory.
std::size_t holders_of(const torch::Tensor& tensor) {
  return tensor.use_count() + tensor.storage().use_count();
}

}  // namespace

RecomputeSequentialImpl::RecomputeSequentialImpl(torch::nn::Sequential layers,
                                                 const RecomputeSequentialOptions& options)
    : torch::nn::Module("RecomputeSequential"), name_(options.name), layers_(std::move(layers)) {
  const auto count = static_cast<std::int64_t>(layers_->size());
  if (options.segments < 0 || options.segments > count) {
    throw InvalidArgument(
        fmt::format("recompute \"{}\": {} segments of {} layers", name_, options.segments, count));
  }
  for (const auto& layer : layers_->named_children()) register_module(layer.key(), layer.value());
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  segments_ = equal_segments(count, options.segments > 0 ? options.segments : root);
}

void RecomputeSequentialImpl::clone_(torch::nn::Module& other,
                                     const std::optional<torch::Device>& device) {
  const auto* const from = dynamic_cast<RecomputeSequentialImpl*>(&other);
  if (from == nullptr || from->layers_->size() != layers_->size()) {
    throw InvalidArgument(fmt::format(
        "recompute \"{}\": clone() of a model whose reset() makes other layers of it", name_));
  }
  layers_ = torch::nn::Sequential(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(from->layers_->clone(device)));
  const auto names = named_children().keys();
  for (std::size_t k = 0; k < names.size(); ++k) replace_module(names[k], layers_->ptr(k));
  segments_ = from->segments_;
  train(from->is_training());
}

void RecomputeSequentialImpl::set_segments(std::vector<MemorySegment> segments) {
  peak_of(std::vector<LayerMemory>(layers_->size()), segments);  // for its checks
  segments_ = std::move(segments);
}

torch::Tensor RecomputeSequentialImpl::run(const torch::Tensor& x, std::int64_t first,
                                           std::int64_t last) {
  auto y = x;
  for (auto i = first; i < last; ++i) {
    y = (layers_->begin() + i)->forward<torch::Tensor>(y);
  }
  return y;
}

torch::Tensor RecomputeSequentialImpl::forward(const torch::Tensor& x) {
  auto y = x;
  for (const auto& [first, last, again] : segments_) {
    if (!again) {
      y = run(y, first, last);
      continue;
    }
    RecomputeOptions options{.name = fmt::format("{} [{}, {})", name_, first, last)};
    const auto all = children();
    options.modules.assign(all.begin() + first, all.begin() + last);
    const auto given = y;
    const auto version = given._version();
    try {
      y = recompute(
          std::move(options),
          [this, first = first, last = last](const torch::Tensor& z) {
            return run(z, first, last);
          },
          y);
    } catch (const InvalidArgument& error) {
      if (given._version() == version) throw;
      throw InvalidArgument(fmt::format(
          "{}: a layer that does so, as ReLU(inplace), is not the first one of a segment: cut "
          "before the layer that it changes the result of, by set_segments(), or let fit() cut",
          error.what()));
    }
  }
  return y;
}

/// Names, and which layers are one because of changes in place.
std::vector<LayerMemory> RecomputeSequentialImpl::look_through(const torch::Tensor& sample) {
  const torch::NoGradGuard no_grad;
  std::vector<LayerMemory> layers;
  auto next = sample.clone();
  std::int64_t at = 0;
  for (const auto& child : named_children()) {
    const auto input = next;
    const auto version = input._version();
    next = run(input, at, at + 1);
    ++at;
    auto type = child.value()->name();
    type = type.substr(type.rfind(':') + 1);
    if (type.ends_with("Impl")) type.resize(type.size() - 4);
    const auto name = fmt::format("{} {}", child.key(), type);
    if (input._version() == version) {
      layers.push_back({.name = name});
      continue;
    }
    if (layers.empty()) {
      throw InvalidArgument(
          fmt::format("recompute \"{}\": layer {} changes its input in place, the program's batch",
                      name_, name));
    }
    ++layers.back().layers;
    layers.back().name += " + " + name;
  }
  return layers;
}

std::vector<LayerMemory> RecomputeSequentialImpl::measure_layers(const torch::Tensor& sample) {
  auto layers = look_through(sample);
  MemoryMeter meter;
  auto next = sample.detach();
  std::int64_t end = 0;
  for (auto& layer : layers) {
    const auto at = std::exchange(end, end + layer.layers);
    auto input = next.detach();
    const bool learns = at == 0 ? sample.requires_grad() : c10::isFloatingType(input.scalar_type());
    input.requires_grad_(learns);
    // Of two times the shorter: whatever else the machine does only adds to one.
    layer.forward_ms = milliseconds_of([&] { run(input, at, end); });
    // Of a leaf, the node of its gradient is a holder, too: it is there from now on.
    const auto accumulator = learns ? torch::autograd::impl::gradient_edge(input).function
                                    : decltype(torch::autograd::Edge::function)();
    const auto holders = holders_of(input);
    const auto before = meter.current();
    meter.restart();
    torch::Tensor result;
    layer.forward_ms =
        std::min(layer.forward_ms, milliseconds_of([&] { result = run(input, at, end); }));
    const bool is_input = result.storage().is_alias_of(input.storage());
    layer.forward_peak = bytes_of(meter.peak() - before);
    layer.result = is_input ? 0 : result.storage().nbytes();
    layer.inside = bytes_of(meter.current() - before - static_cast<std::int64_t>(layer.result));
    layer.keeps_input = holders_of(input) > holders + (is_input ? 1 : 0);
    layer.keeps_result = !is_input && result.storage().use_count() > 1;
    std::vector<torch::Tensor> wanted;
    for (auto l = at; l < end; ++l) {
      for (const auto& parameter : children()[static_cast<std::size_t>(l)]->parameters()) {
        if (!parameter.requires_grad()) continue;
        const std::uint64_t bytes = parameter.nbytes();
        layer.gradients += bytes;
        layer.largest_gradient = std::max(layer.largest_gradient, bytes);
        wanted.push_back(parameter);
      }
    }
    if (learns) wanted = {input};
    if (!learns) layer.largest_gradient = 0;  // measured with the rest
    next = result.detach();
    if (result.requires_grad() && !wanted.empty()) {
      const auto gradient = torch::ones_like(result);
      const auto kept = meter.current();
      meter.restart();
      torch::autograd::grad({result}, wanted, {gradient}, false, false, /*allow_unused=*/true);
      layer.backward_peak = bytes_of(meter.peak() - kept);
    }
  }
  return layers;
}

namespace {

/// The segments of a plan, which count its entries, counted in layers of the program.
std::vector<MemorySegment> in_layers(const MemoryPlan& plan) {
  std::vector<std::int64_t> begins = {0};
  for (const auto& layer : plan.layers) begins.push_back(begins.back() + layer.layers);
  auto segments = plan.segments;
  for (auto& segment : segments) {
    segment.first = begins[static_cast<std::size_t>(segment.first)];
    segment.last = begins[static_cast<std::size_t>(segment.last)];
  }
  return segments;
}

}  // namespace

std::uint64_t RecomputeSequentialImpl::measure_step(const torch::Tensor& sample,
                                                    const std::vector<MemorySegment>& segments) {
  // Gradients are added to what is there, as in any step but the first.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before;
  for (auto& parameter : parameters()) {
    if (!parameter.requires_grad()) continue;
    before.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const auto own = std::exchange(segments_, segments);
  const auto give_back = c10::make_scope_exit([&] {
    segments_ = own;
    for (auto& [parameter, gradient] : before) parameter.mutable_grad() = gradient;
  });
  const auto input = sample.detach().requires_grad_(sample.requires_grad());
  MemoryMeter meter;
  {
    const auto result = forward(input);
    // A loss whose gradient comes into being in backward, and is kept by nobody.
    if (result.requires_grad()) (result * 1).sum().backward();
  }
  return bytes_of(meter.peak());
}

MemoryPlan RecomputeSequentialImpl::fit(const torch::Tensor& sample, MemoryBudget budget) {
  for (const auto& parameter : named_parameters()) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameter.value()) == nullptr) continue;
    throw InvalidArgument(fmt::format(
        "recompute \"{}\": fit() with parameter \"{}\" in a Trainer or a DataParallel: fit before "
        "one is made",
        name_, parameter.key()));
  }
  auto used = parameters();
  used.push_back(sample);
  for (const auto& tensor : used) {
    if (tensor.is_cpu()) continue;
    throw Unsupported(fmt::format(
        "recompute \"{}\": fit() of layers on {}: what it measures are the bytes of libtorch's "
        "allocator of the CPU, and times of the host; cut by the number of segments, or by "
        "set_segments()",
        name_, tensor.device().str()));
  }
  const KeptState state({}, {}, name_);
  const KeptState::Restored restored(state, children());
  const c10::AutoGradMode recorded(true);
  if (budget.share) require_share(*budget.share);
  const auto layers = measure_layers(sample);
  const auto measured = [&](std::uint64_t target) {
    auto plan = plan_memory(layers, target);
    plan.measured_peak = measure_step(sample, in_layers(plan));
    return plan;
  };
  const auto count = static_cast<std::int64_t>(layers_->size());
  const auto least = measured(budget_of_share(layers, 0));
  const auto lowest = *least.measured_peak;
  if (budget.share) {
    const auto plain = measure_step(sample, {{0, count, false}});
    budget.bytes =
        lowest + static_cast<std::uint64_t>(*budget.share *
                                            static_cast<double>(plain - std::min(plain, lowest)));
  }
  if (budget.bytes < lowest) {
    throw InvalidArgument(fmt::format(
        "recompute \"{}\": a memory budget of {:.6g} MB: a step takes {:.2f} MB at least", name_,
        static_cast<double>(budget.bytes) / 1e6, static_cast<double>(lowest) / 1e6));
  }
  // The plan whose computed peak is the budget; then by as much as measured peaks differ from it.
  auto best = least;
  auto target = std::max(budget.bytes, least.least_peak);
  constexpr int kTries = 6;
  for (int t = 0; t < kTries; ++t) {
    auto plan = measured(target);
    const auto peak = *plan.measured_peak;
    const bool fits = peak <= budget.bytes;
    if (fits && plan.added_ms < best.added_ms) best = plan;
    if (fits && (plan.added_ms == 0 || budget.bytes - peak < budget.bytes / 50)) break;
    const auto next =
        fits ? target + (budget.bytes - peak)
             : std::max(least.least_peak, target - std::min(target, peak - budget.bytes));
    if (next == target) break;
    target = next;
  }
  best.budget = budget.bytes;
  segments_ = in_layers(best);
  return best;
}

}  // namespace tutti
