// The workers of a step exchange: which of them have data in a step, whether their modules and, at
// the end, their models are alike; where they meet within a step, and what hosts give one another
// there. See step_exchange.h.

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/timeline.h"
#include "job/publish.h"
#include "job/wire/rank_set.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti {

bool StepExchange::has_leaf(int rank) const {
  const auto& other = header(rank);
  switch (other.mode) {
    case StepMode::one_backward:
      return true;
    case StepMode::micro_batches:
      return other.leaves > 0;
    case StepMode::no_gradient:
      break;
  }
  return other.weight > 0;
}

/// Whether it counts: a worker without rows may run a leaf, of weight 0.
bool StepExchange::has_weight(int rank) const {
  const auto& other = header(rank);
  if (other.mode != StepMode::micro_batches) return other.weight > 0;
  const std::span nodes(other.nodes, static_cast<std::size_t>(other.node_count));
  return std::ranges::any_of(nodes, [](const auto& node) { return node.weight > 0; });
}

int StepExchange::buffer_source() const {
  for (int r = 0; r < group_.size(); ++r) {
    if (has_weight(r)) return r;
  }
  for (int r = 0; r < group_.size(); ++r) {
    if (has_leaf(r)) return r;
  }
  return 0;
}

/// May be called before all have published: returns false where a lower rank is certain to be the
/// source.
bool StepExchange::may_be_source() const {
  if (group_.rank() == 0) return true;
  if (!has_leaf(group_.rank())) return false;
  for (int r = 0; r < group_.rank(); ++r) {
    const auto& other = header(r);
    if (other.opened.load(std::memory_order_acquire) < step_) continue;
    if (other.mode != StepMode::micro_batches && other.weight > 0) return false;
  }
  return true;
}

bool StepExchange::all_drained() const {
  for (int r = 0; r < group_.size(); ++r) {
    if (header(r).drained == 0) return false;
  }
  return true;
}

/// Workers without a leaf ran no forward: the modes of their modules do not matter.
void StepExchange::compare_modes() const {
  const int first = buffer_source();
  const auto modes_of = [&](int r) { return nodes_.board_of(r).modes(); };
  const auto text = [](std::uint8_t mode) { return mode != 0 ? "train()" : "eval()"; };
  for (int r = 0; r < group_.size(); ++r) {
    if (r == first || !has_leaf(r)) continue;
    for (std::size_t k = 0; k < options_.modules; ++k) {
      if (modes_of(r)[k] == modes_of(first)[k]) continue;
      throw Mismatch(
          fmt::format("{}: {} is in {} on rank {}, in {} on rank {}; call train() or eval() alike "
                      "on all workers",
                      step_text(), options_.module_name(k), text(modes_of(first)[k]),
                      group_.job_rank(first), text(modes_of(r)[k]), group_.job_rank(r)));
    }
  }
}

std::optional<std::string> StepExchange::leave(const ModelMemory& model) noexcept {
  if (!state_.job().is_own() || !digests_.compares() || done_ == 0 || is_open()) return {};
  auto& mine = header(group_.rank());
  if (mine.ended.load(std::memory_order_relaxed) != 0) return {};
  std::vector<int> parted;
  for (int r = 0; r < group_.size(); ++r) {
    // Another worker may still be reading this worker's board of a dropped step.
    if (header(r).folded.load(std::memory_order_acquire) < done_) return {};
  }
  digests_.publish(model);
  // Sequentially consistent: of two workers that part at once, one sees the other.
  send_ahead(state_.job(),
             {{nodes_.board().digests().data(), nodes_.board().digests().size_bytes()}});
  publish_early(state_.job(), mine.parted, done_ + 1);
  for (int r = 0; r < group_.size(); ++r) {
    if (header(r).parted.load(std::memory_order_seq_cst) == done_ + 1) parted.push_back(r);
  }
  const auto found = digests_.difference(parted);
  if (!found || header(0).parting_said.exchange(1) != 0) return {};
  return fmt::format("\"{}\" after step {}: {}", options_.name, number_of(done_), *found);
}

StepExchange::Arrived StepExchange::come_to(std::uint64_t round) {
  return
      [this, round](int r) { return header(r).barrier.load(std::memory_order_acquire) >= round; };
}

void StepExchange::barrier_after(const char* what,
                                 const std::function<void(const Arrived&)>& before) {
  require_running();
  phase_ = what;
  guarded([&] {
    const auto round = step_ * kMaxBarriers + ++barriers_;
    const auto arrived = come_to(round);
    if (state_.spans_hosts() && state_.team().rank == 0) before(arrived);
    tell_all(&StepHeader::barrier, round);
    wait_for_all(arrived);
  });
}

void StepExchange::barrier(const char* what, std::span<const HostPiece> pieces) {
  barrier_after(what, [&](const Arrived& arrived) { give_to_hosts(pieces, arrived); });
}

void StepExchange::barrier_given(const char* what) {
  barrier_after(what, [&](const Arrived& arrived) { await_given(arrived); });
}

void StepExchange::barrier_while(const char* what, const std::function<bool()>& move,
                                 const std::function<RankSet()>& missing) {
  require_running();
  phase_ = what;
  guarded([&] {
    const auto round = step_ * kMaxBarriers + ++barriers_;
    const auto arrived = come_to(round);
    tell_all(&StepHeader::barrier, round);
    if (state_.team().rank != 0) return wait_for_all(arrived);
    drop_if_thrown([&] {
      wait_for_all(arrived, move);
      sums_->connect();
      const auto late = [&] { return missing() | sums_->missing_pieces(); };
      // One that failed meanwhile has come, too.
      wait_for([&] { return move() && sums_->has_given(); }, late,
               [&](int r) { return !late().contains(group_.job_rank(r)); });
    });
  });
}

/// The memory of what is under way may go then.
void StepExchange::drop_if_thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    sums_->drop();
    throw;
  }
}

/// By one worker of each host.
void StepExchange::give_to_hosts(std::span<const HostPiece> pieces, const Arrived& arrived) {
  if (pieces.empty()) return;
  begin_giving(pieces);
  await_given(arrived);
}

void StepExchange::begin_giving(std::span<const HostPiece> pieces) {
  if (state_.team().rank != 0) return;
  guarded([&] {
    drop_if_thrown([&] {
      sums_->connect();
      sums_->give(pieces);
    });
  });
}

void StepExchange::await_given(const Arrived& arrived) {
  const TimelineSpan span(state_.job().timeline(), "pieces of hosts");
  drop_if_thrown([&] {
    wait_for([&] { return sums_->has_given(); }, [&] { return sums_->missing_pieces(); }, arrived);
  });
}

void StepExchange::await_given() {
  if (state_.team().rank != 0) return;
  phase_ = "what was given in";
  guarded([&] { await_given([](int) { return true; }); });
}

void StepExchange::drop_link() noexcept {
  if (sums_) sums_->drop();
  ++links_dropped_;
}

void StepExchange::tell() { tutti::publish(state_.job(), header(group_.rank()).told, step_); }

void StepExchange::hear(int rank, const char* what) {
  const auto* const before = std::exchange(phase_, what);
  guarded([&] {
    wait_for_all([&](int r) {
      return r != rank || header(r).told.load(std::memory_order_acquire) >= step_;
    });
  });
  phase_ = before;
}

}  // namespace tutti
