#include "torch/shards/shard_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/host_copies.h"
#include "sync/averaging/replica_averaging.h"
#include "torch/model/same_bytes.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/trainer_settings.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

/// The least `first_of(r)` that is not −1; −1 if all are.
template <class FirstOf>
int worker_of_first(const ShardBoard& board, const FirstOf& first_of) {
  int first = -1;
  for (int r = 0; r < board.size(); ++r) {
    const auto mine = first_of(board.of(r));
    if (mine >= 0 && (first < 0 || mine < first_of(board.of(first)))) first = r;
  }
  return first;
}

}  // namespace

ShardBuffers::ShardBuffers(const WrappedModel& model, StepExchange& exchange,
                           const ShardBoard& board, const TrainerOptions& options,
                           std::int64_t first_shard, const ReplicaParameters* replicas,
                           const KeeperBoard* keepers, HostCopies* host)
    : exchange_(exchange),
      board_(board),
      replica_parameters_(replicas),
      first_shard_(first_shard),
      name_(options.name),
      deadline_(options.deadline),
      host_(host),
      buffers_(host != nullptr ? host->buffers() : model.buffers()),
      logical_{{0, options.shards}},
      workers_per_shard_(exchange.options().workers_per_shard),
      keepers_(keepers),
      first_keeper_(model.parameters().size()) {
  bool any_per_replica = false;
  std::vector<TensorSpec> specs;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& [buffer, tensor] = buffers_[b];
    rules_.push_back(buffer_rule_of(options, buffer, tensor));
    replicas_.push_back(model.is_per_replica_buffer(b));
    any_per_replica = any_per_replica || is_per_replica(b);
    if (rules_[b] != BufferRule::mean) continue;
    averaged_.push_back(b);
    specs.push_back(
        {buffer, tensor.sizes().vec(), tensor.strides().vec(), tensor.numel(), dtype_of(tensor)});
  }
  if (any_per_replica) {
    logical_ = logical_workers(options.shards, options.logical_workers);
    const auto& last = exchange.plan().buffers().back();
    own_bytes_ = last.offset + last.bytes - exchange.plan().buffers().front().offset;
    own_firsts_ =
        exchange.group().allocate(std::max<std::size_t>(own_bytes_ * logical_.size(), 1),
                                  fmt::format("per-replica buffers of \"{}\"", options.name));
  }
  if (!specs.empty()) {
    mean_ = std::make_unique<BufferMean>(
        exchange.memory(), std::move(specs),
        any_per_replica ? node_boundaries_of(options) : std::vector<std::int64_t>(),
        logical_.size(), workers_per_shard_, options.name);
  }
  home_ = place();
  fetch();
  varies_.resize(buffers_.size());
  keep();
  send_from_first_rank();
  for (std::size_t b = 0; b < buffers_.size(); ++b) spread(b);
}

std::byte* ShardBuffers::published(int rank, std::size_t logical, std::size_t buffer) const {
  if (!is_per_replica(buffer)) return published_buffer(exchange_.nodes(), rank, buffer);
  const auto entries = exchange_.plan().buffers();
  return own_firsts_->block(rank) + logical * own_bytes_ + entries[buffer].offset -
         entries.front().offset;
}

void ShardBuffers::give() const {
  if (host_ != nullptr) host_->give_buffers(std::vector<std::uint8_t>(buffers_.size(), 1));
}

void ShardBuffers::send_from_first_rank(const std::vector<std::uint8_t>& written) {
  fetch();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& tensor = buffers_[b].second;
    tutti::send_from_first_rank(exchange_.group(), buffers_[b], deadline_);
    tensor.unsafeGetTensorImpl()->bump_version();
    if (same_bytes(tensor, begin_[0][b]) && (written.empty() || written[b] == 0)) continue;
    begin_[0][b] = tensor.detach().clone();
    spread(b);
  }
  give();
}

void ShardBuffers::resume() {
  for (const auto& item : replica_tensors()) {
    tutti::send_from_first_rank(exchange_.group(), item, deadline_);
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    tutti::send_from_first_rank(exchange_.group(), buffers_[b], deadline_);
    buffers_[b].second.unsafeGetTensorImpl()->bump_version();
    begin_[0][b] = buffers_[b].second.detach().clone();
  }
  give();
}

NamedTensors ShardBuffers::tensors() const {
  NamedTensors tensors;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    tensors.emplace_back(buffers_[b].first, begin_[0][b]);
  }
  return tensors;
}

/// Keeps the current values as those of the step's begin.
void ShardBuffers::keep() {
  begin_.assign(logical_.size(), {});
  for (auto& values : begin_) {
    for (const auto& item : buffers_) values.push_back(item.second.detach().clone());
  }
}

/// Copies the first logical worker's buffer to all logical workers.
void ShardBuffers::spread(std::size_t buffer) {
  for (auto& values : begin_) copy_bytes(values[buffer], begin_[0][buffer].data_ptr());
}

NamedTensors ShardBuffers::replica_tensors() const {
  NamedTensors tensors;
  for (std::size_t l = 1; l < begin_.size(); ++l) {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      if (!is_per_replica(b)) continue;
      tensors.emplace_back(fmt::format("logical.{}/{}", l, buffers_[b].first), begin_[l][b]);
    }
  }
  return tensors;
}

void ShardBuffers::require_untouched(std::size_t logical) const {
  fetch();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& [name, tensor] = buffers_[b];
    if (same_bytes(tensor, begin(logical, b))) continue;
    throw InvalidArgument(
        fmt::format("buffer \"{}\" of Trainer \"{}\" was changed between its steps on this worker: "
                    "change values inside trainer.edit(), and run the model outside of steps in "
                    "eval(). Where another Trainer's step runs this model too, in train(), give "
                    "one Trainer a module that registers both, and requires_grad_(false) to the "
                    "parameters that a step is not about",
                    name, name_));
  }
}

void ShardBuffers::open(const StepFacts&) {
  if (mean_) mean_->open(first_shard_);
  if (host_ == nullptr) return;
  lay_out(0);
  is_laid_out_ = true;
}

void ShardBuffers::lay_out(std::size_t logical) {
  if (buffers_.empty()) return;
  if (host_ != nullptr) host_->settle();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    copy_bytes(buffers_[b].second, begin(logical, b).data_ptr());
  }
}

void ShardBuffers::restore(std::size_t logical) {
  if (!is_laid_out_) lay_out(logical);
  give();
}

void ShardBuffers::drop() noexcept {
  is_laid_out_ = false;
  left_.clear();
  try {
    restore();
  } catch (...) {  // the device has failed: its next call says so
  }
}

/// `value_of(buffer)` is what the shard has left; null where another one of the workers that
/// compute it has that.
void ShardBuffers::take(std::size_t logical, const ValueOf& value_of, bool is_first,
                        bool is_first_of_logical) {
  if (mean_) {
    std::vector<const void*> values;
    std::vector<const void*> before;
    for (const auto b : averaged_) {
      values.push_back(value_of(b));
      before.push_back(begin(logical, b).const_data_ptr());
    }
    mean_->take(own_firsts_ ? logical : 0, values, before);
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (!(is_per_replica(b) ? is_first_of_logical : is_first)) continue;
    const auto bytes = exchange_.plan().buffers()[b].bytes;
    const void* const value = value_of(b);
    if (value == nullptr || bytes == 0) continue;
    std::memcpy(published(exchange_.group().rank(), logical, b), value, bytes);
  }
}

void ShardBuffers::take(std::size_t logical, bool is_first, bool is_first_of_logical) {
  if (host_ != nullptr) {
    left_.push_back(Left{host_->copies_of_buffers(), is_first});
    return;
  }
  const auto value_of = [&](std::size_t b) { return buffers_[b].second.const_data_ptr(); };
  take(logical, value_of, is_first, is_first_of_logical);
}

void ShardBuffers::skip() {
  if (host_ != nullptr) {
    left_.emplace_back();
  } else if (mean_) {
    mean_->skip();
  }
}

void ShardBuffers::bring() {
  host_->settle();
  is_laid_out_ = false;
  for (const auto& left : std::exchange(left_, {})) {
    if (left) {
      const auto value_of = [&](std::size_t b) { return left->values[b].const_data_ptr(); };
      take(0, value_of, left->is_first, left->is_first);
    } else if (mean_) {
      mean_->skip();
    }
  }
}

int ShardBuffers::keeper_of(int first, std::size_t buffer) const {
  if (keepers_ == nullptr) return first;
  for (int r = first; r < first + workers_per_shard_; ++r) {
    if (keepers_->has(r, first_keeper_ + buffer)) return r;
  }
  return -1;
}

void ShardBuffers::publish() {
  if (mean_) mean_->publish();
  const auto entries = exchange_.plan().buffers();
  if (entries.empty()) return;
  const auto bytes = entries.back().offset + entries.back().bytes - entries.front().offset;
  const auto& memory = exchange_.memory();
  memory.send({{published_buffer(exchange_.nodes(), exchange_.group().rank(), 0), bytes}});
  if (own_firsts_) memory.send({{own_firsts_->data(), own_bytes_ * logical_.size()}});
}

void ShardBuffers::apply(const StepFacts&) {
  if (mean_) mean_->barrier();
  finish(0, false, worker_of_first(board_, [](const auto& one) { return one.first_ran; }));
  const bool is_due = replica_parameters_ != nullptr && replica_parameters_->is_due();
  for (std::size_t l = 0; own_firsts_ && l < logical_.size(); ++l) {
    if (replica_parameters_ != nullptr && !replica_parameters_->took_part(l)) continue;
    finish(l, true, worker_of_first(board_, [&](const auto& one) { return one.own_first_ran[l]; }));
  }
  for (std::size_t b = 0; is_due && b < buffers_.size(); ++b) {
    if (is_per_replica(b)) become_one(b);
  }
  restore();
}

/// Of the per-replica buffers of that logical worker, or of the others. `first` is the rank that
/// had the first of their shards that ran; −1: none did.
void ShardBuffers::finish(std::size_t logical, bool per_replica, int first) {
  if (first < 0) return;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const int keeper = keeper_of(first, b);
    if (is_per_replica(b) != per_replica || rules_[b] == BufferRule::keep || keeper < 0) continue;
    copy_bytes(begin_[logical][b], published(keeper, logical, b));
  }
  if (!mean_) return;
  const auto all = mean_->nodes();
  const auto nodes = per_replica ? nodes_of(all, logical_)[logical] : NodeRange{0, all.size()};
  for (std::size_t k = 0; k < averaged_.size(); ++k) {
    if (is_per_replica(averaged_[k]) != per_replica) continue;
    if (!(per_replica ? mean_->changed(k, logical) : mean_->changed(k))) continue;
    mean_->mean(k, nodes, begin_[logical][averaged_[k]].data_ptr());
  }
}

/// Equal copies stay: their mean may differ from them by a rounding.
void ShardBuffers::become_one(std::size_t buffer) {
  if (rules_[buffer] == BufferRule::keep) return;
  const auto equal = [&](const auto& values) {
    return same_bytes(values[buffer], begin_[0][buffer]);
  };
  if (std::ranges::all_of(begin_, equal)) return;
  if (rules_[buffer] == BufferRule::mean) {
    std::vector<const void*> sources;
    for (const auto& values : begin_) sources.push_back(values[buffer].data_ptr());
    const auto& first = begin_[0][buffer];
    tree_mean(FoldProgram::canonical(static_cast<int>(begin_.size())), sources, dtype_of(first),
              first.numel(), first.data_ptr());
  }
  spread(buffer);
}

}  // namespace tutti
