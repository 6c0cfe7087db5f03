#include "torch/classes/trained_classifiers.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <iterator>
#include <numeric>
#include <set>

#include "base/check.h"
#include "comm/group_state.h"
#include "job/alone.h"
#include "sync/update/gradient_norms.h"
#include "torch/model/gradient_hooks.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Calls as numbers: those of layer l are 2·l + 1 and 2·l + 2.
std::int64_t call_of(std::size_t layer, ClassifierUse use) {
  return 2 * static_cast<std::int64_t>(layer) + (use == ClassifierUse::predict ? 2 : 1);
}
std::size_t layer_of(std::int64_t call) { return static_cast<std::size_t>((call - 1) / 2); }
ClassifierUse use_of(std::int64_t call) {
  return call % 2 == 0 ? ClassifierUse::predict : ClassifierUse::forward;
}

}  // namespace

std::unique_ptr<TrainedClassifiers> TrainedClassifiers::find(const Group& group,
                                                             const torch::nn::Module& module,
                                                             const ClassifierTrainer& trainer) {
  std::vector<Layer> layers;
  std::set<const void*> seen;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    auto* const layer = item.value().get();
    const auto refuse = [&](const char* why) {
      throw Unsupported(
          fmt::format("Trainer \"{}\": layer \"{}\" {}", trainer.name, item.key(), why));
    };
    if (dynamic_cast<WeightedLayer*>(layer) == nullptr || !seen.insert(layer).second) continue;
    auto* const split = dynamic_cast<SplitModule*>(layer);
    if (split == nullptr) {
      refuse(
          "takes its numbers from all workers' samples at once, and a Trainer's shards are "
          "computed one by one, on any number of workers: it is for a DataParallel");
    }
    auto* const classifier = dynamic_cast<ParallelCrossEntropyImpl*>(split);
    if (classifier == nullptr) {
      refuse(
          "is split over workers, and leaves its update to an optimizer of the program: of such "
          "layers a Trainer has ParallelCrossEntropy, and a DataParallel all");
    }
    if (split->group().state()->ranks() != group.state()->ranks()) {
      throw InvalidArgument(
          fmt::format("Trainer \"{}\": layer \"{}\" is split over other workers than the Trainer's",
                      trainer.name, item.key()));
    }
    if (!trainer.refusal.empty()) {
      throw Unsupported(fmt::format("Trainer \"{}\" with the split layer \"{}\" and {}",
                                    trainer.name, item.key(), trainer.refusal));
    }
    layers.push_back({item.key(), classifier});
  }
  if (layers.empty()) return nullptr;
  return std::unique_ptr<TrainedClassifiers>(
      new TrainedClassifiers(group.state()->job(), trainer, std::move(layers)));
}

TrainedClassifiers::TrainedClassifiers(JobState& job, const ClassifierTrainer& trainer,
                                       std::vector<Layer> layers)
    : job_(job),
      trainer_(trainer),
      owner_(std::make_shared<const std::string>(fmt::format("Trainer \"{}\"", trainer.name))),
      layers_(std::move(layers)) {
  for (const auto& one : layers_) {
    one.layer->take(owner_);
    ParameterHooks::forget(one.layer->anchor());
  }
}

TrainedClassifiers::~TrainedClassifiers() { drop(); }

void TrainedClassifiers::begin_step(std::int64_t step, const torch::nn::Module* active) {
  std::set<const torch::nn::Module*> wanted;
  if (active != nullptr) {
    wanted.insert(active);
    for (const auto& module : active->modules(/*include_self=*/false)) wanted.insert(module.get());
  }
  is_active_.clear();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    is_active_.push_back(active == nullptr || wanted.contains(layers_[l].layer));
    layers_[l].own().forget();
    layers_[l].own().rounds().begin_step(step, trainer_.shards, announce_of(l));
  }
}

void TrainedClassifiers::run_shards(const std::function<void()>& shards) {
  run(shards);
  gather_gradients();
}

void TrainedClassifiers::set_backward(bool runs) const {
  for (const auto& layer : layers_) layer.own().rounds().set_backward(runs);
}

void TrainedClassifiers::begin_shard(std::int64_t shard) {
  for (const auto& layer : layers_) layer.own().rounds().begin_shard(shard);
}

void TrainedClassifiers::end_shard() const {
  for (const auto& layer : layers_) layer.own().rounds().rethrow_failure();
}

void TrainedClassifiers::gather_gradients() {
  squares_.assign(layers_.size(), 0);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    auto& own = layers_[l].own();
    if (!is_active_[l]) {
      own.forget();
      continue;
    }
    own.gather_gradients();
    if (needs_norms(trainer_.clip) || own.may_overflow()) squares_[l] = own.squares();
  }
}

void TrainedClassifiers::weigh(double weight, bool gives_loss) {
  for (const auto& layer : layers_) {
    layer.layer->set_gradient_weight(weight);
    if (gives_loss || !layer.own().rounds().is_called_in_shard()) continue;
    throw InvalidArgument(fmt::format(
        "a shard that calls the split layer \"{}\" returns shard.loss(), not shard.gradients()",
        layer.name));
  }
}

std::string TrainedClassifiers::not_finite() const {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (const auto shard = layers_[l].own().not_finite()) {
      return fmt::format("the gradient of \"{}\" in shard {} is not finite", layers_[l].name,
                         *shard);
    }
    if (!std::isfinite(squares_[l])) {
      return fmt::format("the gradient of \"{}\", summed over the shards, is not finite",
                         layers_[l].name);
    }
  }
  return {};
}

StepPart& TrainedClassifiers::part_with(const NodeStore& nodes) {
  nodes_ = &nodes;
  return *this;
}

/// By contributors too a split layer's is the sum of all weights, as in a DataParallel.
double TrainedClassifiers::divisor(double loss_scale) const {
  TUTTI_CHECK(nodes_ != nullptr, "layers of a step that has no nodes");
  return (nodes_->divisor() == Divisor::none ? 1 : nodes_->held().weight()) * loss_scale;
}

void TrainedClassifiers::judge(StepFacts& step) {
  if (!step.verdict.refusal.empty()) return;
  const double by = divisor(step.loss_scale);
  step.verdict.refusal = not_finite();
  step.verdict.finite = step.verdict.refusal.empty();
  if (by > 0 && needs_norms(trainer_.clip)) {
    step.verdict.squares_elsewhere =
        std::accumulate(squares_.begin(), squares_.end(), 0.0) / (by * by);
  }
}

void TrainedClassifiers::apply(const StepFacts& step) {
  const double by = divisor(step.loss_scale);
  const auto& clip = trainer_.clip;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const double own_norm = std::sqrt(squares_[l]) / by;
    const auto& norm = step.verdict.norm;  // of all parameters, after the division
    const double scale =
        norm ? clip_scale(clip.norm, *norm) * clip_scale(clip.parameter_norm, own_norm) : 1;
    layers_[l].own().update({.divisor = by,
                             .gradient_scale = scale,
                             .clip_value = clip.value,
                             .rate_factor = step.rate_factor});
  }
}

void TrainedClassifiers::drop() noexcept {
  for (const auto& layer : layers_) {
    layer.own().forget();
    layer.layer->set_gradient_weight(1);
  }
}

// ---- calls that all make ----

std::vector<std::int64_t> TrainedClassifiers::tell(std::int64_t call) const {
  std::int64_t active = 0;
  for (std::size_t l = 0; l < is_active_.size(); ++l) active = 2 * active + (is_active_[l] ? 1 : 0);
  const std::int64_t mine[] = {call, active};
  const auto size = static_cast<std::size_t>(group().size());
  std::vector<std::int64_t> all(2 * size);
  group().all_gather({mine, 2, DType::int64}, {all.data(), std::ssize(all), DType::int64},
                     {.label = "calls of split layers", .deadline = trainer_.deadline});
  std::vector<std::int64_t> calls;
  for (std::size_t r = 0; r < size; ++r) {
    calls.push_back(all[2 * r]);
    if (all[2 * r + 1] == active) continue;
    throw InvalidArgument(fmt::format("{}: ranks {} and {} make this step about different modules",
                                      *owner_, group().job_rank(group().rank()),
                                      group().job_rank(static_cast<int>(r))));
  }
  return calls;
}

ClassifierRounds::Announce TrainedClassifiers::announce_of(std::size_t layer) const {
  return [this, layer](ClassifierUse use) { join_others(call_of(layer, use)); };
}

void TrainedClassifiers::join_others(std::int64_t call) const {
  for (;;) {
    const auto all = tell(call);
    std::int64_t next = 0;
    for (const auto one : all) {
      if (one != 0 && (next == 0 || one < next)) next = one;
    }
    if (next == call) return;
    try {
      layers_[layer_of(next)].own().join_call(use_of(next));
    } catch (const PeerFailed&) {
      if (call != 0) throw;  // else who failed says so at the end
    }
  }
}

void TrainedClassifiers::run(const std::function<void()>& body) const {
  std::exception_ptr failed;
  try {
    body();
  } catch (...) {
    failed = std::current_exception();
  }
  try {
    const Together together(job_);
    join_others(0);
  } catch (...) {
    if (!failed) failed = std::current_exception();
  }
  if (failed) std::rethrow_exception(failed);
}

void TrainedClassifiers::evaluate(const std::function<void()>& body) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].own().rounds().begin_evaluation(announce_of(l));
  }
  is_active_.clear();
  const auto end = c10::make_scope_exit([&] {
    for (const auto& layer : layers_) layer.own().rounds().end_evaluation();
  });
  run(body);
}

}  // namespace tutti
