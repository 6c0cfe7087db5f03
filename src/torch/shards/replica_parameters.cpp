#include "torch/shards/replica_parameters.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/norm.h"
#include "memory/memory_need.h"
#include "sync/step/traffic_count.h"
#include "torch/model/real_numbers.h"
#include "torch/model/same_bytes.h"
#include "torch/model/tensor_at.h"
#include "torch/shards/pipeline_settings.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

double squares_of(const torch::Tensor& tensor) {
  std::vector<double> blocks(
      static_cast<std::size_t>((count_of_reals(tensor) + kNormBlock - 1) / kNormBlock));
  squares_of_blocks(tensor.data_ptr(), dtype_of(tensor), count_of_reals(tensor), blocks);
  return tree_sum(blocks);
}

ReplicaParameters::ReplicaParameters(StepExchange& exchange, const ShardBoard& board,
                                     const Model& model, const TrainerOptions& options)
    : exchange_(exchange),
      model_(model.tensors),
      shown_(model.shown),
      state_names_(model.names),
      clip_(options.clip),
      most_drops_(options.max_consecutive_drops),
      logical_(logical_workers(options.shards, options.logical_workers)),
      copies_(exchange.group(), exchange.plan(), model.first, model.states, logical_.size(),
              options.name,
              ReplicaHosts(*exchange.group().state(),
                           carriers_of(logical_, assignment_of(options, exchange.group().size())))),
      drops_(logical_.size()) {
  const auto& group = exchange.group();
  if (options.averaging) {
    averaging_ = std::make_unique<ReplicaAveraging>(
        exchange.memory(), exchange.plan(), copies_,
        AveragingOptions{options.averaging, options.state_at_averaging, options.compression.fusion,
                         model.initial_states, options.name});
  }
  update_ = std::make_unique<ReplicaUpdate>(exchange, board, copies_, logical_, model.rules,
                                            options.clip, averaging_.get());
  if (group.state()->team().rank == 0) {
    for (const auto p : copies_.parameters()) {
      copies_.spread(p);
      if (averaging_) averaging_->restart(p);
    }
  }
  group.barrier({.label = "per-replica parameters"});
}

void ReplicaParameters::bring() {
  if (!differ_on_hosts()) return;
  std::vector<std::size_t> all(size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  copies_.bring(all);
  land();
  if (averaging_) averaging_->bring_kept();
}

void ReplicaParameters::bring(std::size_t logical) { copies_.bring({&logical, 1}); }

void ReplicaParameters::bring_from_first_rank() {
  if (!differ_on_hosts()) return;
  copies_.bring_from_first_rank();
  if (averaging_) averaging_->spread_kept();
}

std::size_t ReplicaParameters::logical_worker_of(std::int64_t shard) const {
  const auto after = std::find_if(logical_.begin(), logical_.end(),
                                  [&](const ShardRange& range) { return shard < range.end; });
  return static_cast<std::size_t>(after - logical_.begin());
}

void ReplicaParameters::show(std::size_t logical) {
  if (logical == shown_now_) return;
  at::autocast::clear_cache();  // it has casts of another copy
  shown_.show(copies_.of(logical), copies_.parameters());
  shown_now_ = logical;
}

void ReplicaParameters::judge(StepFacts& step) {
  auto& verdict = step.verdict;
  dropped_.clear();
  why_.clear();
  update_->collect_nodes(step.loss_scale);
  if (!verdict.refusal.empty()) return;
  const auto& locals = update_->judge(step.number);
  double squares = verdict.norm ? *verdict.norm * *verdict.norm : 0;
  for (std::size_t l = 0; l < locals.size(); ++l) {
    squares += locals[l].squares;
    if (locals[l].refusal.empty()) continue;
    dropped_.push_back(static_cast<std::int64_t>(l));
    why_.push_back(locals[l].refusal);
  }
  verdict.norm = needs_norms(clip_) ? std::optional(std::sqrt(squares)) : std::nullopt;
  bool any_update = update_->updates_any();
  const auto& parameters = exchange_.plan().parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    any_update = any_update || (!parameters[p].spec.is_per_replica && exchange_.nodes().touched(p));
  }
  if (any_update || dropped_.empty()) return;
  verdict.refusal = why_.front();
  verdict.finite = false;
  dropped_.clear();
}

bool ReplicaParameters::took_part(std::size_t logical) const {
  return std::ranges::find(dropped_, static_cast<std::int64_t>(logical)) == dropped_.end();
}

void ReplicaParameters::commit(StepFacts& step) {
  update_->commit();
  step.dropped_locally = dropped_;
}

void ReplicaParameters::end(StepFacts& step) {
  const bool is_applied = step.verdict.refusal.empty();
  if (is_applied) step.diverged = note_drops(step.shrank);
  if (!are_all()) return;
  auto& report = step.report;  // no gradient was exchanged
  report.max_sent_bytes = is_applied && averaging_ ? averaging_->rounds().bytes() : 0;
  report.collectives = report.buckets = report.max_sent_bytes > 0 ? 1 : 0;
}

void ReplicaParameters::add_traffic(TrafficReport& report) const {
  if (!are_all()) return;
  report.collectives = 0;  // no gradient was exchanged
  if (!averaging_) return;
  const auto traffic = averaging_->traffic();
  report.collectives = traffic.collectives;
  report = merged(std::move(report), traffic);
}

/// Counts for each logical worker how many steps in succession dropped its part. Returns an error's
/// text where a count is too large, else "".
std::string ReplicaParameters::note_drops(bool shrank) {
  std::vector<std::int64_t> before(size());
  std::swap(before, drops_);
  std::string text;
  for (std::size_t k = 0; k < dropped_.size(); ++k) {
    const auto l = static_cast<std::size_t>(dropped_[k]);
    drops_[l] = before[l] + (shrank ? 0 : 1);
    if (drops_[l] < most_drops_ || !text.empty()) continue;
    text = fmt::format(
        "logical worker {} could not take part in {} steps in succession, in the last one because "
        "{}",
        l, drops_[l], why_[k]);
  }
  return text;
}

torch::Tensor ReplicaParameters::gradient(std::uint32_t parameter) {
  if (!exchange_.nodes().touched(parameter)) return {};
  std::vector<torch::Tensor> all;
  for (std::size_t l = 0; l < size(); ++l) all.push_back(gradient(l, parameter));
  return torch::stack(all);
}

/// Shards of that logical worker that did not touch the parameter give NaN: a stack has a value for
/// each logical worker, and 0 would be a gradient.
torch::Tensor ReplicaParameters::gradient(std::size_t logical, std::uint32_t parameter) {
  const auto& tensor = model_.tensor(parameter);
  const auto type = scalar_type_of(exchange_.plan().parameters()[parameter].node_type);
  auto gradient = torch::empty_strided(tensor.sizes(), tensor.strides(), type_like(tensor, type));
  if (update_->touched(logical, parameter)) {
    update_->read_gradient(logical, parameter, static_cast<std::byte*>(gradient.data_ptr()));
  } else {
    gradient.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return gradient;
}

double ReplicaParameters::squares() {
  double total = 0;
  for (std::size_t l = 0; l < size(); ++l) {
    if (!took_part(l)) continue;
    for (const auto p : copies_.parameters()) {
      if (update_->touched(l, p)) total += squares_of(gradient(l, p));
    }
  }
  return total;
}

torch::Tensor ReplicaParameters::gather(std::size_t parameter) const {
  std::vector<torch::Tensor> all;
  const auto& tensor = model_.tensor(parameter);
  for (std::size_t l = 0; l < size(); ++l) {
    all.push_back(tensor_at(copies_.of(l).value(parameter), tensor, tensor.scalar_type()));
  }
  return torch::stack(all);
}

std::vector<torch::Tensor> ReplicaParameters::snapshot() const {
  std::vector<torch::Tensor> values(model_.parameters().size());
  for (const auto p : copies_.parameters()) values[p] = model_.tensor(p).detach().clone();
  return values;
}

std::vector<std::uint8_t> ReplicaParameters::written(
    const std::vector<torch::Tensor>& before) const {
  std::vector<std::uint8_t> written(model_.parameters().size());
  for (const auto p : copies_.parameters()) {
    const bool differs = !before.empty() && !same_bytes(model_.tensor(p), before[p]);
    written[p] = differs || shown_.was_written(p);
  }
  return written;
}

void ReplicaParameters::spread(const std::vector<std::uint8_t>& written, bool copy) {
  for (const auto p : copies_.parameters()) {
    if (written[p] == 0) continue;
    if (copy) copies_.spread(p);
    for (auto& rules : update_->rules()) rules.updates()[p] = update_->rules()[0].updates()[p];
    if (!averaging_) continue;
    if (copy) averaging_->restart(p);
    averaging_->settle(p);
  }
}

torch::Tensor ReplicaParameters::view(std::byte* at, std::size_t parameter) const {
  const auto type = scalar_type_of(exchange_.plan().parameters()[parameter].node_type);
  const auto& like = model_.tensor(parameter);
  return tensor_at(at, like, type_like(like, type));
}

NamedTensors ReplicaParameters::tensors() const {
  NamedTensors tensors;
  for (std::size_t l = 1; l < size(); ++l) {
    const auto& copy = copies_.of(l);
    for (const auto p : copies_.parameters()) {
      const auto& [name, tensor] = model_.parameters()[p];
      const auto full = fmt::format("logical.{}/{}", l, name);
      tensors.emplace_back(full, tensor_at(copy.value(p), tensor, tensor.scalar_type()));
      if (copy.master(p) != copy.value(p)) {
        tensors.emplace_back(full + "/master", view(copy.master(p), p));
      }
      for (int k = 0; k < copy.states(p); ++k) {
        tensors.emplace_back(full + "/" + state_names_[p][static_cast<std::size_t>(k)],
                             view(copy.state(p, k), p));
      }
    }
  }
  return tensors;
}

NamedTensors ReplicaParameters::kept_tensors() const {
  NamedTensors tensors;
  const auto* const kept = averaging_ ? averaging_->kept() : nullptr;
  if (kept == nullptr) return tensors;
  for (const auto p : copies_.parameters()) {
    const auto& name = model_.name(p);
    tensors.emplace_back(name + "/before", view(kept->master(p), p));
    for (int k = 0; k < kept->states(p); ++k) {
      tensors.emplace_back(fmt::format("{}/{}", name, averaging_->kept_name(k)),
                           view(kept->state(p, k), p));
    }
  }
  return tensors;
}

void ReplicaParameters::add_to(ValueCheck& check) const {
  for (std::size_t l = 1; l < size(); ++l) {
    if (copies_.hosts().is_here(l)) check.add(copies_.of(l), copies_.parameters());
  }
}

ReplicaPosition ReplicaParameters::position() const {
  ReplicaPosition position;
  for (const auto& rules : update_->rules()) position.updates.push_back(rules.updates());
  if (averaging_) {
    position.moved = averaging_->rounds().moved();
    position.in_flight = averaging_->rounds().in_flight();
  }
  position.drops = drops_;
  return position;
}

void ReplicaParameters::restore(const ReplicaPosition& position) {
  for (std::size_t l = 0; l < size(); ++l) update_->rules()[l].updates() = position.updates[l];
  if (averaging_) {
    averaging_->rounds().moved() = position.moved;
    averaging_->rounds().in_flight() = position.in_flight;
  }
  drops_ = position.drops;
}

void ReplicaParameters::check(const ReplicaPosition& position) const {
  const auto parameters = model_.parameters().size();
  const bool counts = position.updates.size() == size() &&
                      std::ranges::all_of(position.updates, [&](const auto& one) {
                        return one.size() == parameters;
                      });
  if (counts && position.drops.size() == size() &&
      position.moved.size() == (averaging_ ? parameters : 0) &&
      position.in_flight.size() == (averaging_ ? averaging_->rounds().in_flight().size() : 0))
    return;
  throw InvalidArgument(
      "the checkpoint's manifest counts updates of other logical workers or parameters");
}

std::string ReplicaParameters::text() const {
  std::string text =
      fmt::format(", {} per-replica parameters: {} for each of {} logical workers",
                  copies_.parameters().size(), format_bytes(copies_.bytes()), copies_.size());
  const auto* const kept = averaging_ ? averaging_->kept() : nullptr;
  if (kept != nullptr) text += fmt::format(", {} for the averaging", format_bytes(kept->bytes()));
  return text;
}

}  // namespace tutti
