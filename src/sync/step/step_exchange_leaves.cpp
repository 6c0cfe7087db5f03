// A worker's leaves of a step, from open_…() to the last write: see step_exchange.h.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "memory/memory_need.h"
#include "sync/plan/assignment.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kMostBetweenHosts = std::int64_t{1} << 20;  ///< elements of a bucket

}  // namespace

void StepExchange::open_one_backward(double weight) {
  open(StepMode::one_backward, 1, weight, false);
  is_alone_ =
      group_.size() == 1 && !options_.coded && options_.divisor != Divisor::none && weight > 0;
  nodes_.leaves().set_start(group_.rank());
  nodes_.leaves().begin_leaf(is_alone_ ? 1.0 : weight);
}

void StepExchange::open_scope(std::optional<std::int64_t> leaves) {
  if (leaves) require_room(*leaves, 0);
  open(StepMode::micro_batches, leaves.value_or(-1), 0, false);
}

/// Workers whose nodes this host has memory for: those of other hosts only where it folds them.
int StepExchange::arenas_here() const { return sums_ ? state_.team().size() : group_.size(); }

/// Checks the memory for the nodes of `leaves` leaves, wherever their range begins, with `cuts`
/// cuts inside it.
void StepExchange::require_room(std::int64_t leaves, std::int64_t cuts) {
  if (leaves < 2) return;
  auto nodes = max_nodes(leaves) + cuts;
  if (cuts > 0) nodes = std::min(nodes, leaves);
  const int most = static_cast<int>(std::min<std::int64_t>(nodes, kMaxSlots));
  const int more = most - nodes_.leaves().slots_used();
  if (more <= 0 || leaves <= roomy_for_) return;
  const auto refusal =
      refuse_memory(state_.job().system(),
                    {plan().slot_bytes() * static_cast<std::size_t>(more), arenas_here(),
                     fmt::format("up to {} more gradient copies of \"{}\", for {} pieces of a step",
                                 more, options_.name, leaves)});
  if (!refusal.empty()) {
    fail(refusal);
    throw OutOfMemory(refusal);
  }
  roomy_for_ = leaves;
}

void StepExchange::open_shards(std::int64_t first, std::int64_t leaves) {
  require_room(
      leaves, std::count_if(options_.node_boundaries.begin(), options_.node_boundaries.end(),
                            [&](std::int64_t cut) { return cut > first && cut < first + leaves; }));
  open(StepMode::micro_batches, leaves, 0, false);
  nodes_.leaves().set_start(first);
}

void StepExchange::open_without_gradient(double weight, bool drained) {
  open(StepMode::no_gradient, weight > 0 ? 1 : 0, weight, drained);
  const auto& board = nodes_.board();
  std::memset(board.slot_table(0), kAbsent, plan().parameters().size());
  for (std::size_t b = 0; b < schedule_->size(); ++b) publish_bucket(b);
}

/// Between hosts a bucket takes as long as the link needs, so that large ones leave it idle.
std::unique_ptr<BucketSchedule> StepExchange::schedule_of(
    std::span<const std::uint32_t> order) const {
  const auto most = [this](std::int64_t elements) {
    return sums_ ? std::min(elements, kMostBetweenHosts) : elements;
  };
  return std::make_unique<BucketSchedule>(plan(), order, most(options_.first_fusion),
                                          most(options_.fusion));
}

/// Whether a worker's gradients may have left while its backward ran.
bool StepExchange::leave_in_buckets() const {
  if (options_.coded) return false;
  return is_one_backward() || (sums_ && std::ranges::any_of(nodes_.boards(), [](const auto& board) {
                                 const auto& other = board.header();
                                 return other.mode == StepMode::micro_batches && other.declared > 0;
                               }));
}

/// The bucket is complete on this worker. Where hosts add it up they learn so, and what it has.
void StepExchange::publish_bucket(std::size_t bucket) {
  auto& ready = nodes_.board().bucket_ready(bucket);
  if (sums_ && !options_.coded) {
    if (mode_ == StepMode::micro_batches && !nodes_.is_published()) {
      auto& mine = header(group_.rank());
      mine.leaves = mine.declared;
      nodes_.publish();
    }
    nodes_.send_entries(schedule_->parameters(bucket));
    tutti::publish(state_.job(), ready, step_, {},
                   with_all(nodes_.board_of(0).bucket_ready(bucket), state_.members()));
    return;
  }
  ready.store(step_, std::memory_order_release);
  announce(state_.job().board());
}

void StepExchange::open(StepMode mode, std::int64_t declared, double weight, bool drained) {
  require_running();
  TUTTI_CHECK(!is_open(), "steps do not nest");
  step_ = done_ + 1;
  waits_ = 0;
  waited_ = exposed_ = {};
  opened_at_ = state_.job().system().now();
  phase_ = "the start of";
  is_completing_ = false;
  is_alone_ = false;
  // No worker may still be reading what the last step left here. This is known after a step that
  // succeeded; after one that failed, the others have to notice first.
  const auto through = [this](int r) {
    return header(r).folded.load(std::memory_order_acquire) >= done_ ||
           header(r).left.load(std::memory_order_acquire) >= done_;
  };
  guarded([&] { wait_for_all(through); });

  nodes_.open();
  first_look_.open(step_);
  fired_.clear();
  unfired_in_.assign(schedule_->size(), 0);
  for (std::size_t b = 0; b < schedule_->size(); ++b) {
    unfired_in_[b] = static_cast<std::uint32_t>(schedule_->parameters(b).size());
  }
  next_bucket_ = next_summed_ = 0;
  if (sums_) sums_->open(step_);
  barriers_ = 0;
  collected_ = false;
  mode_ = mode;
  auto& mine = header(group_.rank());
  mine.mode = mode;
  mine.declared = declared;
  mine.weight = weight;
  mine.drained = drained;
  mine.schedule = schedule_->hash();
  tell_all(&StepHeader::opened, step_, {published(mine.mode, mine.schedule)});
}

void StepExchange::begin_leaf(double weight) {
  state_.job().require_own();
  const auto declared = header(group_.rank()).declared;
  if (declared >= 0 && nodes_.leaves().leaves() == declared) {
    throw InvalidArgument(
        fmt::format("accumulate() was told of {} micro-batches, this is one more", declared));
  }
  // With a known number, nodes are folded as leaves come, so the place of this leaf must be known.
  if (!nodes_.leaves().start() && nodes_.leaves().leaves() > 0) find_start(declared >= 0);
  nodes_.leaves().begin_leaf(weight);
}

void StepExchange::end_leaf() { nodes_.leaves().end_leaf(); }

std::int64_t StepExchange::next_leaf() {
  if (!nodes_.leaves().start()) find_start(true);
  return *nodes_.leaves().start() + nodes_.leaves().leaves();
}

/// Adds up the leaves of the workers before this one, if they are known or `wait` is set.
void StepExchange::find_start(bool wait) {
  const auto knows = [this](int r) {
    const auto& other = header(r);
    if (other.counted.load(std::memory_order_acquire) >= step_) return true;
    return other.opened.load(std::memory_order_acquire) >= step_ && other.declared >= 0;
  };
  const auto all_before = [&](int r) { return r >= group_.rank() || knows(r); };
  if (wait) {
    guarded([&] { wait_for_all(all_before); });
  }
  std::int64_t start = 0;
  for (int r = 0; r < group_.rank(); ++r) {
    if (!knows(r)) return;
    start += header(r).declared >= 0 ? header(r).declared : header(r).leaves;
  }
  nodes_.leaves().set_start(start);
}

double StepExchange::write(std::size_t parameter, const void* gradient, bool last, bool may_stay) {
  state_.job().require_own();
  const auto& spec = plan().parameters()[parameter].spec;
  first_look_.note(nodes_.leaves().leaves(), parameter, gradient,
                   static_cast<std::size_t>(spec.count) * size_of(spec.dtype));
  const double largest = nodes_.leaves().write(parameter, gradient, last, may_stay);
  note_write(parameter, last);
  return largest;
}

double StepExchange::write(std::size_t parameter, const RowEntries& entries, bool last) {
  state_.job().require_own();
  const auto& entry = plan().parameters()[parameter];
  first_look_.note(
      nodes_.leaves().leaves(), parameter, entries.values,
      static_cast<std::size_t>(entries.count * entry.row_elements()) * size_of(entry.spec.dtype));
  const double largest = nodes_.leaves().write(parameter, entries, last);
  note_write(parameter, last);
  return largest;
}

/// Whether parameters that the open leaf has written for the last time are complete on this worker,
/// and others use that before the step is published.
bool StepExchange::completes_buckets() const {
  if (mode_ == StepMode::one_backward) return true;
  const auto& leaves = nodes_.leaves();
  return sums_ && !options_.coded && mode_ == StepMode::micro_batches && leaves.start() &&
         leaves.leaves() + 1 == header(group_.rank()).declared;
}

void StepExchange::note_write(std::size_t parameter, bool last) {
  if (!order_agreed_ && group_.rank() == 0 &&
      std::find(fired_.begin(), fired_.end(), parameter) == fired_.end()) {
    fired_.push_back(static_cast<std::uint32_t>(parameter));
  }
  if (!last || !completes_buckets()) return;
  const auto bucket = schedule_->bucket_of(parameter);
  if (--unfired_in_[bucket] == 0) {
    publish_bucket(bucket);
    if (!options_.coded) resume_meanwhile();
  }
  if (!meanwhile_) guarded([this] { fold_ready_buckets(); });
}

}  // namespace tutti
