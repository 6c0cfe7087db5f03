#include "sync/step/step_protocol.h"

#include <exception>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/timeline.h"
#include "job/wait.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr auto kAnyStep = std::numeric_limits<std::uint64_t>::max();

/// The group's waits ask it for as long as this lives.
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

StepProtocol::StepProtocol(const StepBoards& boards, const ExchangeOptions& options, Hooks hooks)
    : group_(boards.memory().group()),
      boards_(boards),
      options_(options),
      hooks_(std::move(hooks)),
      ending_(boards_, options_, numbers_) {}

std::string StepProtocol::step_text() const {
  return fmt::format("step {} of \"{}\"", number(), options_.name);
}

void StepProtocol::number_next(std::int64_t number) {
  numbers_.begin = number - static_cast<std::int64_t>(numbers_.done + 1);
}

std::string StepProtocol::hint_without_gradient() const {
  return mode_ == StepMode::no_gradient ? options_.hint_without_gradient : std::string();
}

void StepProtocol::run_collectives(const std::function<void()>& collectives) {
  require_running();
  guarded(
      [&] {
        for (int r = 0; r < group_.size(); ++r) {
          if (r != group_.rank()) ending_.check(r, kAnyStep);
        }
        watch_collectives(group_, collectives);
      },
      "");
}

void StepProtocol::watch_collectives(const Group& group, const std::function<void()>& collectives) {
  // A worker that ends its part meanwhile is noticed at once, in any step, because no collective is
  // over before all have come. It ends after all collectives that it took part in, so this is
  // checked last.
  const auto ask = [&](const std::function<RankSet()>& missing) {
    std::vector<int> over;
    for (int r = 0; r < group_.size(); ++r) {
      if (r != group_.rank() && ending_.has_left(r)) over.push_back(r);
    }
    const auto late = over.empty() ? RankSet() : missing();
    for (const int r : over) {
      if (late.contains(group_.job_rank(r))) ending_.check(r, kAnyStep);
    }
  };
  const PartnerScope scope(*group.state(), ask);
  collectives();
}

void StepProtocol::guarded(const std::function<void()>& body, const std::string& hint) {
  try {
    body();
  } catch (const PeerFailed&) {
    hooks_.drop();
    close(false);
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

void StepProtocol::end(EndKind kind, int culprit, const std::string& text) noexcept {
  if (ending_.end(kind, culprit, text)) mode_.reset();
}

void StepProtocol::begin() {
  require_running();
  TUTTI_CHECK(!is_open(), "steps do not nest");
  numbers_.open = numbers_.done + 1;
  waits_ = 0;
  waited_ = {};
  opened_at_ = job().system().now();
  phase_ = "the start of";
  is_completing_ = false;
  // No worker may still be reading what the last step left here. This is known after a step that
  // succeeded; after one that failed, the others have to notice first.
  const auto through = [this](int r) {
    return header(r).folded.load(std::memory_order_acquire) >= numbers_.done ||
           header(r).left.load(std::memory_order_acquire) >= numbers_.done;
  };
  guarded([&] { wait_for_all(through); });
  barriers_ = 0;
}

void StepProtocol::open(StepMode mode, std::int64_t declared, double weight, bool drained,
                        std::uint64_t schedule) {
  mode_ = mode;
  auto& mine = own_header();
  mine.mode = mode;
  mine.declared = declared;
  mine.weight = weight;
  mine.drained = drained;
  mine.schedule = schedule;
  tell_all(&StepHeader::opened, numbers_.open, {published(mine.mode, mine.schedule)});
}

void StepProtocol::complete(const std::function<void()>& work) {
  require_running();
  phase_ = "the end of its update in";
  is_completing_ = true;
  // Sequentially consistent, as is the fate: who finds no end has seen what those who end see.
  const auto folded = [this](int r) {
    return header(r).folded.load(std::memory_order_seq_cst) >= numbers_.open;
  };
  try {
    guarded([&] {
      ending_.check_fate();
      work();
      tell_all(&StepHeader::folded, numbers_.open);
      wait_for_all(folded);
      ending_.check_fate();
    });
  } catch (const Error&) {
    if (!ending_.has_succeeded(numbers_.open)) throw;
  }
}

/// After a step that has succeeded, those who open the next one need no more than `folded`.
void StepProtocol::close(bool has_succeeded) {
  publish(job(), own_header().left, numbers_.open, {}, has_succeeded ? with_next() : Company());
  if (auto* timeline = job().timeline(); timeline != nullptr && is_open()) {
    timeline->add(step_text(), opened_at_, job().system().now());
  }
  numbers_.done = numbers_.open;
  mode_.reset();
}

void StepProtocol::fail(const std::string& text) noexcept {
  if (!job().is_own() || ending_.is_over()) return;
  auto& mine = own_header();
  hooks_.pause();
  numbers_.open = numbers_.done + 1;
  tutti::write(mine.failure, text);
  publish_early(job(), mine.failed, numbers_.open, {published(mine.failure)});
  hooks_.drop();
  close(false);
}

void StepProtocol::leave() noexcept {
  if (!job().is_own()) return;
  hooks_.pause();
  if (std::uncaught_exceptions() > 0) {
    const auto& mine = own_header();
    const bool said =
        mine.failed.load(std::memory_order_relaxed) == numbers_.done && numbers_.done > 0;
    fail(said ? read(mine.failure) : "it was left by an exception");
  }
  publish_early(job(), own_header().closed, numbers_.done + 1);
}

void StepProtocol::barrier(const char* what, const std::function<void(const Arrived&)>& before) {
  require_running();
  phase_ = what;
  guarded([&] {
    const auto round = next_barrier();
    const auto arrived = at_barrier(round);
    if (before && state().spans_hosts() && state().team().rank == 0) before(arrived);
    tell_all(&StepHeader::barrier, round);
    wait_for_all(arrived);
  });
}

StepProtocol::Arrived StepProtocol::at_barrier(std::uint64_t round) const {
  return
      [this, round](int r) { return header(r).barrier.load(std::memory_order_acquire) >= round; };
}

void StepProtocol::post() { publish(job(), own_header().told, numbers_.open); }

void StepProtocol::await_post(int rank, const char* what) {
  const auto* const before = std::exchange(phase_, what);
  guarded([&] {
    wait_for_all([&](int r) {
      return r != rank || header(r).told.load(std::memory_order_acquire) >= numbers_.open;
    });
  });
  phase_ = before;
}

void StepProtocol::tell_all(std::atomic<std::uint64_t> StepHeader::*word, std::uint64_t value,
                            std::initializer_list<PublishedData> data) {
  publish(job(), own_header().*word, value, data, with_all(header(0).*word, state().members()));
}

void StepProtocol::wait_for_all(const Arrived& arrived, const std::function<void()>& progress) {
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

void StepProtocol::wait_for(const std::function<bool()>& ready,
                            const std::function<RankSet()>& missing, const Arrived& arrived,
                            bool needs_calls) {
  if (ready()) return;
  const auto begin = job().system().now();
  wait_until(job(), ready, [&] {
    WaitSubject subject;
    subject.missing = missing;
    subject.members = state().members();
    subject.what = [&] {
      return options_.updates_in_place ? fmt::format("{} {}", phase_, step_text()) : hooks_.what();
    };
    subject.check = [&] { check_peers(arrived); };
    subject.deadline = job().deadline(options_.deadline);
    subject.needs_calls = needs_calls;
    return subject;
  });
  const auto end = job().system().now();
  ++waits_;
  waited_ += end - begin;
  if (auto* timeline = job().timeline()) timeline->add("wait", begin, end);
}

/// Throws the error that a worker which has not arrived has reported.
void StepProtocol::check_peers(const Arrived& arrived) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank() || arrived(r)) continue;
    const auto& other = header(r);
    const bool has_failed = other.failed.load(std::memory_order_acquire) >= numbers_.open;
    if (arrived(r)) continue;  // meanwhile: what failed is a later step
    if (!has_failed) {
      ending_.check(r, numbers_.open);
      continue;
    }
    const int rank = group_.job_rank(r);
    const bool is_late = options_.updates_in_place && is_completing_;
    const auto text =
        fmt::format("{}: rank {} failed{}: {}{}", step_text(), rank,
                    is_late ? " in the middle of the update" : "", read(other.failure),
                    is_late ? "" : "; the step is dropped by all workers");
    job().rendezvous().blame(rank, text);
    if (is_late) throw Mismatch(text);
    throw PeerFailed(rank, number(), text);
  }
}

}  // namespace tutti
