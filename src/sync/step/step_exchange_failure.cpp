// Waits and errors of a step exchange. A step ends the same way on every worker: a worker that
// finds an error reports it to the others before it throws.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/timeline.h"
#include "job/wait.h"
#include "job/wire/rank_set.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string_view text_of(StepMode mode) {
  switch (mode) {
    case StepMode::one_backward:
      return "one backward";
    case StepMode::micro_batches:
      return "an accumulation scope";
    case StepMode::no_gradient:
      return "nothing of its own";
  }
  return "";
}

[[noreturn]] void throw_ended(EndKind kind, int culprit, const std::string& text) {
  switch (kind) {
    case EndKind::lost:
      throw PeerLost(culprit, text);
    case EndKind::timeout:
      throw Timeout(text);
    case EndKind::mismatch:
    case EndKind::running:
      break;
  }
  throw Mismatch(text);
}

/// The group's waits ask it for as long as this lives.
constexpr auto kAnyStep = std::numeric_limits<std::uint64_t>::max();

class PartnerScope {
 public:
  PartnerScope(const GroupState& group, PartnerCheck check) : group_(group) {
    group_.ask_also(std::move(check));
  }
  ~PartnerScope() { group_.ask_also({}); }
  PartnerScope(const PartnerScope&) = delete;
  PartnerScope& operator=(const PartnerScope&) = delete;

 private:
  const GroupState& group_;
};

}  // namespace

std::string StepExchange::step_text() const {
  return fmt::format("step {} of \"{}\"", number_of(step_), options_.name);
}

std::string StepExchange::what_is_waited_for() const {
  if (options_.updates_in_place) return fmt::format("{} {}", phase_, step_text());
  if (plan().parameters().empty()) return step_text();
  const auto bucket = std::min(next_bucket_, schedule_->size() - 1);
  const auto first = schedule_->size() == 0 ? 0 : schedule_->parameters(bucket).front();
  return fmt::format("step {}, all-reduce of \"{}\" in \"{}\"", number_of(step_),
                     plan().parameters()[first].spec.name, options_.name);
}

std::string StepExchange::hint_without_gradient() const {
  return mode_ == StepMode::no_gradient ? options_.hint_without_gradient : std::string();
}

std::string StepExchange::mode_texts() const {
  std::string text = ": workers take part in different ways:";
  for (int r = 0; r < group_.size(); ++r) {
    text += fmt::format(" rank {} with {};", group_.job_rank(r), text_of(header(r).mode));
  }
  text.pop_back();
  return text;
}

void StepExchange::tell_all(std::atomic<std::uint64_t> StepHeader::*word, std::uint64_t value,
                            std::initializer_list<PublishedData> data) {
  tutti::publish(state_.job(), header(group_.rank()).*word, value, data,
                 with_all(header(0).*word, state_.members()));
}

void StepExchange::wait_for_all(const Arrived& arrived, const std::function<void()>& progress) {
  const auto ready = [&] {
    if (progress) progress();
    for (int r = 0; r < group_.size(); ++r) {
      if (!arrived(r)) return false;
    }
    return true;
  };
  const auto missing = [&] {
    RankSet late;
    for (int r = 0; r < group_.size(); ++r) {
      if (!arrived(r)) late.insert(group_.job_rank(r));
    }
    return late;
  };
  wait_for(ready, missing, arrived, true);
}

void StepExchange::wait_for(const std::function<bool()>& ready,
                            const std::function<RankSet()>& missing, const Arrived& arrived,
                            bool needs_calls) {
  if (ready()) return;
  const auto begin = state_.job().system().now();
  wait_until(state_.job(), ready, [&] {
    WaitSubject subject;
    subject.missing = missing;
    subject.members = state_.members();
    subject.what = [&] { return what_is_waited_for(); };
    subject.check = [&] { check_peers(arrived); };
    subject.deadline = state_.job().deadline(options_.deadline);
    subject.needs_calls = needs_calls;
    return subject;
  });
  const auto end = state_.job().system().now();
  ++waits_;
  waited_ += end - begin;
  if (auto* timeline = state_.job().timeline()) timeline->add("wait", begin, end);
}

/// Throws the error that a worker which has not arrived has reported.
void StepExchange::check_peers(const Arrived& arrived) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank() || arrived(r)) continue;
    const auto& other = header(r);
    const bool has_failed = other.failed.load(std::memory_order_acquire) >= step_;
    if (arrived(r)) continue;  // meanwhile: what failed is a later step
    if (!has_failed) {
      check_over(r, step_);
      continue;
    }
    const int rank = group_.job_rank(r);
    const bool is_late = options_.updates_in_place && is_completing_;
    const auto text =
        fmt::format("{}: rank {} failed{}: {}{}", step_text(), rank,
                    is_late ? " in the middle of the update" : "", read(other.failure),
                    is_late ? "" : "; the step is dropped by all workers");
    state_.job().rendezvous().blame(rank, text);
    if (is_late) throw Mismatch(text);
    throw PeerFailed(rank, number_of(step_), text);
  }
}

void StepExchange::check_over(int rank, std::uint64_t step) {
  const auto& other = header(rank);
  const int job_rank = group_.job_rank(rank);
  const auto blame = [&](const std::string& text) {
    state_.job().rendezvous().blame(job_rank, text);
    return text;
  };
  const auto ended = static_cast<EndKind>(other.ended.load(std::memory_order_acquire));
  if (ended != EndKind::running) {
    throw_ended(ended, other.culprit.load(), blame(read(other.reason)));
  }
  const auto closed = other.closed.load(std::memory_order_acquire);
  if (closed == 0 || closed > step) return;
  // An exception that leaves the object drops a step first.
  const bool has_failed = closed > 1 && other.failed.load(std::memory_order_acquire) == closed - 1;
  const auto why = has_failed ? fmt::format(" ({})", read(other.failure)) : std::string();
  throw Mismatch(blame(fmt::format(
      "step {} of \"{}\": rank {} ended its part after step {}{} and does not join{}",
      number_of(std::min(step, done_ + 1)), options_.name, job_rank, number_of(closed - 1), why,
      options_.end_hint.empty() ? options_.hint : options_.end_hint)));
}

void StepExchange::check_fate() {
  if (header(0).fate.load(std::memory_order_seq_cst) == StepHeader::kRunning) return;
  if (last_success() >= step_) return;
  for (int r = 0; r < group_.size(); ++r) check_over(r, step_);
  TUTTI_CHECK(false, "{}: the exchange has ended, but nobody ended it", step_text());
}

std::uint64_t StepExchange::last_success() {
  std::uint64_t all = header(0).folded.load();
  for (int r = 1; r < group_.size(); ++r) all = std::min(all, header(r).folded.load());
  decide(state_.job(), header(0).fate, StepHeader::kUndecided, StepHeader::kDecided + all);
  return header(0).fate.load() - StepHeader::kDecided;
}

void StepExchange::guarded(const std::function<void()>& body, const std::string& hint) {
  try {
    body();
  } catch (const PeerFailed&) {
    drop_link();
    close_step(false);
    throw;
  } catch (const PeerLost& error) {
    end(EndKind::lost, error.rank(), error.what());
    throw;
  } catch (const Timeout& error) {
    std::string text = error.what();
    if (text.find(hint) == std::string::npos) text += hint;
    text += hint_without_gradient();
    end(EndKind::timeout, -1, text);
    throw Timeout(text);
  } catch (const Mismatch& error) {
    const auto text = error.what() + hint_without_gradient();
    end(EndKind::mismatch, -1, text);
    throw Mismatch(text);
  }
}

void StepExchange::run_collectives(const std::function<void()>& collectives) {
  require_running();
  guarded(
      [&] {
        for (int r = 0; r < group_.size(); ++r) {
          if (r != group_.rank()) check_over(r, kAnyStep);
        }
        watch_collectives(group_, collectives);
      },
      "");
}

void StepExchange::watch_collectives(const Group& group, const std::function<void()>& collectives) {
  // A worker that ends its part meanwhile is noticed at once, in any step, because no collective is
  // over before all have come. It ends after all collectives that it took part in, so this is
  // checked last.
  const auto is_over = [this](int r) {
    return header(r).closed.load(std::memory_order_acquire) != 0 ||
           header(r).ended.load(std::memory_order_acquire) != 0;
  };
  const auto ask = [&](const std::function<RankSet()>& missing) {
    std::vector<int> over;
    for (int r = 0; r < group_.size(); ++r) {
      if (r != group_.rank() && is_over(r)) over.push_back(r);
    }
    const auto late = over.empty() ? RankSet() : missing();
    for (const int r : over) {
      if (late.contains(group_.job_rank(r))) check_over(r, kAnyStep);
    }
  };
  const PartnerScope scope(*group.state(), ask);
  collectives();
}

void StepExchange::require_running() const {
  state_.job().require_own();
  const auto& mine = header(group_.rank());
  const auto ended = static_cast<EndKind>(mine.ended.load(std::memory_order_relaxed));
  if (ended != EndKind::running) throw_ended(ended, mine.culprit.load(), read(mine.reason));
}

void StepExchange::end(EndKind kind, int culprit, const std::string& text) noexcept {
  if (!state_.job().is_own()) return;
  auto& mine = header(group_.rank());
  if (mine.ended.load(std::memory_order_relaxed) != 0) return;
  tutti::write(mine.reason, text);
  mine.culprit.store(culprit);
  auto& job = state_.job();
  publish_early(job, mine.ended, static_cast<std::uint32_t>(kind),
                {published(mine.culprit), published(mine.reason)});
  try {
    decide(job, header(0).fate, StepHeader::kRunning, StepHeader::kUndecided);
  } catch (const Error&) {
    // Nothing of this worker gets through to other hosts, nor will they wait for more of it.
  }
  tutti::publish(job, mine.left, step_);
  mode_.reset();
  if (kind == EndKind::lost) state_.job().rendezvous().blame(culprit, text);
}

void StepExchange::fail(const std::string& text) noexcept {
  if (!state_.job().is_own()) return;
  auto& mine = header(group_.rank());
  if (mine.ended.load(std::memory_order_relaxed) != 0) return;
  take_sums_back();
  step_ = done_ + 1;
  tutti::write(mine.failure, text);
  publish_early(state_.job(), mine.failed, step_, {published(mine.failure)});
  drop_link();
  close_step(false);
}

}  // namespace tutti
