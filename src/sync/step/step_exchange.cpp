#include "sync/step/step_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "base/timeline.h"
#include "memory/memory_need.h"
#include "tutti/error.h"

namespace tutti {

StepExchange::StepExchange(Group group, Plan plan, const ExchangeOptions& options)
    : group_(std::move(group)),
      state_(*group_.state()),
      options_(options),
      nodes_(group_, (require_equal_plans(group_, plan), std::move(plan)), store_options()),
      slices_(nodes_),
      digests_(this->plan(), group_, nodes_.boards(), options_.desync_check_every),
      first_look_(group_, nodes_.boards(), options_.name),
      schedule_(schedule_of(BucketSchedule::default_order(this->plan()))) {
  outcome_.touched.resize(this->plan().parameters().size());
  // The first workers of hosts make links: the others hear of it where they cannot.
  guarded([&] {
    sums_ = HostSums::make(group_, nodes_,
                           {.name = options_.name,
                            .wanted =
                                [this](std::uint32_t p) {
                                  return !options_.coded ||
                                         !this->plan().parameters()[p].is_partitioned();
                                },
                            .deadline = options_.deadline});
  });
  if (!sums_) return;
  schedule_ = schedule_of(BucketSchedule::default_order(this->plan()));
  if (!options_.coded) meanwhile_.emplace(state_.job(), [this] { sum_ready_buckets(); });
}

/// The other workers are about to need as much memory as this one.
NodeStore::Options StepExchange::store_options() {
  const auto require = [this](std::size_t bytes, const std::string& what) {
    const auto refusal = refuse_memory(state_.job().system(), {bytes, arenas_here(), what});
    if (!refusal.empty()) throw OutOfMemory(refusal);
  };
  return {.arena_label = "gradients of \"" + options_.name + "\"",
          .board_label = "step board of \"" + options_.name + "\"",
          .divisor = options_.divisor,
          .modules = options_.modules,
          .reports_magnitude = options_.reports_magnitude,
          .node_boundaries = options_.node_boundaries,
          .workers_per_leaf = options_.workers_per_shard,
          .stays = options_.stays,
          .before_slot =
              [this, require](int slot) {
                require(plan().slot_bytes(),
                        fmt::format("gradient copy {} of \"{}\"", slot + 1, options_.name));
              },
          .before_list =
              [this, require](std::size_t parameter, std::size_t bytes) {
                require(bytes, fmt::format("the touched rows of \"{}\"",
                                           plan().parameters()[parameter].spec.name));
              }};
}

StepExchange::~StepExchange() {
  if (!state_.job().is_own()) return;
  take_sums_back();
  if (std::uncaught_exceptions() > 0) {
    const auto& mine = header(group_.rank());
    const bool said = mine.failed.load(std::memory_order_relaxed) == done_ && done_ > 0;
    fail(said ? read(mine.failure) : "it was left by an exception");
  }
  publish_early(state_.job(), header(group_.rank()).closed, done_ + 1);
}

void StepExchange::number_next(std::int64_t number) {
  numbers_begin_ = number - static_cast<std::int64_t>(done_ + 1);
}

/// Folds this rank's slices of buckets that all workers have completed while their backward runs.
void StepExchange::fold_ready_buckets() {
  if (options_.coded) return;
  if (state_.spans_hosts()) return sum_ready_buckets();
  while (next_bucket_ < schedule_->size() && is_ready(next_bucket_)) {
    if (!collected_) collect_nodes();
    fold_bucket(next_bucket_++);
  }
}

bool StepExchange::is_ready(std::size_t bucket) const {
  return std::ranges::all_of(nodes_.boards(), [&](const StepBoard& board) {
    return board.bucket_ready(bucket).load(std::memory_order_acquire) == step_ ||
           (sums_ && board.header().published.load(std::memory_order_acquire) == step_);
  });
}

/// The same where hosts add up first: what has come is folded in complete().
void StepExchange::sum_ready_buckets() {
  if (!sums_) return;
  for (; next_summed_ < schedule_->size() && is_ready(next_summed_); ++next_summed_) {
    if (!collected_) collect_nodes();
    sums_->add(schedule_->parameters(next_summed_));
  }
  sums_->progress();
}

/// The program's thread goes on with them.
void StepExchange::take_sums_back() noexcept {
  if (meanwhile_) meanwhile_->pause();
}

/// All have published: waits for the sums of what is left.
void StepExchange::sum_over_hosts() {
  if (!sums_) return;
  const TimelineSpan span(state_.job().timeline(), "sums of hosts");
  for (; next_summed_ < schedule_->size(); ++next_summed_) {
    sums_->add(schedule_->parameters(next_summed_));
  }
  sums_->connect();
  sums_->close();
  const auto begin = state_.job().system().now();
  // A worker that has folded already, and ends now, takes its end of the link along: none is
  // excused.
  wait_for([&] { return sums_->progress(); }, [&] { return sums_->missing(); },
           [](int) { return false; });
  exposed_ = state_.job().system().now() - begin;
}

void StepExchange::fold_bucket(std::size_t bucket) {
  const TimelineSpan span(state_.job().timeline(), "fold");
  slices_.fold(schedule_->parameters(bucket));
}

/// Lists the nodes of all workers in tree order. Their headers were published with the first bucket
/// that was complete on all, or with the step.
void StepExchange::collect_nodes() {
  bool single = false;
  bool scope = false;
  for (int r = 0; r < group_.size(); ++r) {
    single = single || header(r).mode == StepMode::one_backward;
    scope = scope || header(r).mode == StepMode::micro_batches;
    if (header(r).schedule != schedule_->hash()) {
      throw Mismatch(fmt::format("{}: rank {} has another bucket schedule than rank {}",
                                 step_text(), group_.job_rank(r), group_.job_rank(group_.rank())));
    }
  }
  if (single && scope) throw Mismatch(step_text() + mode_texts());
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (int r = 0; r < group_.size(); r += options_.workers_per_shard) {
    const auto& other = header(r);
    if (other.mode == StepMode::micro_batches) {
      append_nodes(nodes, leaves, r, other);
    } else if (!scope || other.declared > 0) {
      // A worker that joined keeps the place of its leaf, so that a sum over single leaves is the
      // tree over ranks, whichever of them wrote.
      nodes.push_back({r, 0, {leaves, 1}, other.weight});
      ++leaves;
    }
  }
  nodes_.collect(std::move(nodes), leaves, single && is_alone_);
  collected_ = true;
}

void StepExchange::fold_slices() {
  while (next_bucket_ < schedule_->size()) fold_bucket(next_bucket_++);
}

void StepExchange::arrive(const ModelMemory& model) {
  require_running();
  TUTTI_CHECK(is_open(), "no step to finish");
  take_sums_back();
  if (nodes_.leaves().in_leaf()) nodes_.leaves().end_leaf();
  const auto declared = header(group_.rank()).declared;
  if (mode_ == StepMode::micro_batches && declared >= 0 && declared != nodes_.leaves().leaves()) {
    const auto text = fmt::format("accumulate() was told of {} micro-batches, but {} were computed",
                                  declared, nodes_.leaves().leaves());
    fail(text);
    throw InvalidArgument(text);
  }
  phase_ = "the end of its shards in";
  guarded([&] {
    publish(model);
    const auto published = [this](int r) {
      return header(r).published.load(std::memory_order_acquire) >= step_;
    };
    wait_for_all(published, [this] { fold_ready_buckets(); });
    if (!collected_) collect_nodes();
    sum_over_hosts();
    if (digests_.due(step_) || (digests_.compares() && all_drained())) {
      digests_.compare(step_text());
    }
    if (digests_.due(step_)) compare_modes();
    first_look_.compare(number_of(step_));
  });
}

const StepExchange::Outcome& StepExchange::complete(const std::function<void()>& work) {
  require_running();
  phase_ = "the end of its update in";
  is_completing_ = true;
  // Sequentially consistent, as is the fate: who finds no end has seen what those who end see.
  const auto folded = [this](int r) {
    return header(r).folded.load(std::memory_order_seq_cst) >= step_;
  };
  try {
    guarded([&] {
      check_fate();
      work();
      fill_outcome();
      adopt_order();
      tell_all(&StepHeader::folded, step_);
      wait_for_all(folded);
      check_fate();
    });
  } catch (const Error&) {
    if (header(0).fate.load() == StepHeader::kRunning || last_success() < step_) throw;
  }
  outcome_.report.waits = waits_;
  outcome_.report.wait_seconds = std::chrono::duration<double>(waited_).count();
  outcome_.report.exposed_seconds = std::chrono::duration<double>(exposed_).count();
  close_step(true);
  return outcome_;
}

void StepExchange::publish(const ModelMemory& model) {
  auto& mine = header(group_.rank());
  const auto& board = nodes_.board();
  // Others wait for the number where it was not declared.
  const auto company =
      mine.declared < 0 ? with_all(header(0).counted, state_.members()) : with_next();
  if (nodes_.is_published()) {
    tutti::publish(state_.job(), mine.counted, step_, {}, company);
  } else {
    mine.leaves = mode_ == StepMode::micro_batches ? nodes_.leaves().leaves() : mine.declared;
    tutti::publish(state_.job(), mine.counted, step_, {published(mine.leaves)}, company);
  }
  // With its start known, this worker publishes only as many nodes as the tree needs.
  if (mode_ == StepMode::micro_batches && !nodes_.leaves().start() && nodes_.leaves().leaves() > 1)
    find_start(true);
  nodes_.publish();
  nodes_.leaves().place_sums();
  if (!order_agreed_ && group_.rank() == 0 && !fired_.empty()) {
    for (const auto p : BucketSchedule::default_order(plan())) {
      if (std::find(fired_.begin(), fired_.end(), p) == fired_.end()) fired_.push_back(p);
    }
    std::copy(fired_.begin(), fired_.end(), board.order().begin());
    mine.has_order = 1;
    send_ahead(state_.job(), {{board.order().data(), board.order().size_bytes()}});
  }
  // This step is the last where all have drained.
  if (digests_.due(step_) || (digests_.compares() && mine.drained != 0)) {
    digests_.publish(model);
    send_ahead(state_.job(), {{board.digests().data(), board.digests().size_bytes()}});
  }
  if (digests_.due(step_)) {
    std::copy_n(model.modes.begin(), std::min(model.modes.size(), board.modes().size()),
                board.modes().begin());
    send_ahead(state_.job(), {{board.modes().data(), board.modes().size_bytes()}});
  }
  first_look_.publish();
  if (options_.sync_buffers && may_be_source()) {
    for (std::size_t b = 0; b < model.buffers.size(); ++b) {
      const auto& entry = plan().buffers()[b];
      std::memcpy(nodes_.arena().data() + entry.offset, model.buffers[b], entry.bytes);
      send_ahead(state_.job(), {{nodes_.arena().data() + entry.offset, entry.bytes}});
    }
  }
  mine.arrived = state_.job().system().now().time_since_epoch().count();
  nodes_.send();
  tell_all(&StepHeader::published, step_);
}

/// The source's buffers replace this worker's, so that all are equal. The next step checks whether
/// they still were when it began.
void StepExchange::take_buffers(const ModelMemory& model) {
  if (!options_.sync_buffers) return;
  const int source = buffer_source();
  outcome_.changed_buffers.assign(model.buffers.size(), 0);
  for (std::size_t b = 0; b < model.buffers.size() && group_.rank() != source; ++b) {
    const auto& entry = plan().buffers()[b];
    const auto* const from = nodes_.arena().block(source) + entry.offset;
    if (std::memcmp(model.buffers[b], from, entry.bytes) == 0) continue;
    std::memcpy(model.buffers[b], from, entry.bytes);
    outcome_.changed_buffers[b] = 1;
  }
  note_buffers(model);
}

void StepExchange::note_buffers(const ModelMemory& model) {
  if (digests_.due(step_ + 1)) digests_.note_buffers(model);
}

/// Buckets follow the order that rank 0 saw in the first step in which it wrote a gradient.
void StepExchange::adopt_order() {
  if (order_agreed_ || header(0).has_order == 0) return;
  schedule_ = schedule_of(nodes_.board_of(0).order());
  order_agreed_ = true;
}

/// All reads of others' boards precede `folded`, which lets them write again.
void StepExchange::fill_outcome() {
  outcome_.drained = 0;
  outcome_.buffer_source = buffer_source();
  std::int64_t last = 0;
  auto& report = outcome_.report;
  report = {};
  for (int r = 0; r < group_.size(); ++r) {
    outcome_.drained += header(r).drained != 0;
    if (header(r).arrived >= last) {
      last = header(r).arrived;
      report.last_worker = group_.job_rank(r);
    }
  }
  for (std::size_t p = 0; p < plan().parameters().size(); ++p) {
    outcome_.touched[p] = nodes_.touched(p);
    const auto bytes = plan().parameters()[p].node_bytes;
    report.dense_bytes += bytes;
    const bool whole = outcome_.touched[p] != 0 && plan().parameters()[p].is_reduced();
    report.max_sent_bytes += whole ? bytes : 0;
    report.parameters_touched += outcome_.touched[p];
  }
  report.step = number_of(step_);
  report.collectives = 1;
  report.buckets = leave_in_buckets() ? static_cast<int>(schedule_->size()) : 1;
  report.parameters_skipped =
      static_cast<int>(plan().parameters().size()) - report.parameters_touched;
  report.leaves = nodes_.leaf_count();
  report.weight = nodes_.weight();
  report.nodes_held = header(group_.rank()).node_count;
  report.zero_copy_gradients = nodes_.leaves().zero_copy();
}

/// After a step that has succeeded, those who open the next one need no more than `folded`.
void StepExchange::close_step(bool has_succeeded) {
  tutti::publish(state_.job(), header(group_.rank()).left, step_, {},
                 has_succeeded ? with_next() : Company());
  if (auto* timeline = state_.job().timeline(); timeline != nullptr && is_open()) {
    timeline->add(step_text(), opened_at_, state_.job().system().now());
  }
  done_ = step_;
  mode_.reset();
}

}  // namespace tutti
