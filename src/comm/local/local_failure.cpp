// How a local group ends before its time: one member finds the reason, all fail with it.

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "comm/local/local_engine.h"

namespace tutti {

std::uint64_t LocalEngine::missing(Goal goal, std::uint64_t value) const {
  std::uint64_t bits = 0;
  for (int member = 0; member < members_.size; ++member) {
    if (member != members_.rank && !has_reached(member, goal, value)) {
      bits |= std::uint64_t{1} << group_.ranks[static_cast<std::size_t>(member)];
    }
  }
  return bits;
}

std::string LocalEngine::what(std::uint64_t sequence) const {
  // A full ring is waited for before the new operation has a record.
  const std::uint64_t shown = std::min(sequence, started_);
  return fmt::format("{}, call {} of group \"{}\"",
                     describe(control_.record(members_.rank, shown), members_.size), shown,
                     group_.name);
}

void LocalEngine::look_around(Goal goal, std::uint64_t value, std::uint64_t sequence) {
  constexpr std::uint64_t kEvery = 64;
  if (++fruitless_tests_ % kEvery != 0) return;
  try {
    const JobState::Gone gone = job_.gone();
    if (const std::uint64_t lost = missing(goal, value) & gone.all; lost != 0) {
      const int culprit = std::countr_zero(lost);
      const std::string text =
          fmt::format("rank {} ended before reaching {}", culprit, what(sequence));
      job_.rendezvous().blame(culprit, text);
      throw PeerLost(culprit, text);
    }
    if (!polling_deadline_) polling_deadline_ = job_.deadline(pending(sequence).patience);
    if (job_.system().now() > polling_deadline_->at) {
      throw Timeout(fmt::format("{} was polled for in vain until its deadline", what(sequence)));
    }
  } catch (...) {
    fail_with_current_exception();
  }
}

void LocalEngine::fail_mismatch(std::uint64_t sequence) {
  std::string text =
      fmt::format("members of group \"{}\" disagree in call {}", group_.name, sequence);
  const auto hash_of = [&](int member) {
    return control_.arrival(member, sequence).hash.load(std::memory_order_relaxed);
  };
  char separator = ':';
  for (int member = 0; member < members_.size; ++member) {
    const std::uint64_t hash = hash_of(member);
    std::vector<int> alike;
    bool listed = false;
    for (int other = 0; other < members_.size; ++other) {
      if (hash_of(other) != hash) continue;
      if (other < member) listed = true;
      alike.push_back(group_.ranks[static_cast<std::size_t>(other)]);
    }
    if (listed) continue;
    fmt::format_to(std::back_inserter(text), "{} rank{} {}: {}", separator,
                   alike.size() > 1 ? "s" : "", fmt::join(alike, " "),
                   describe(control_.record(member, sequence), members_.size));
    separator = ';';
  }
  end({.kind = EndingKind::mismatch, .job_rank = -1, .found_by = -1, .text = text});
  ended_->raise();
}

void LocalEngine::fail_with_current_exception() {
  try {
    throw;
  } catch (const PeerLost& e) {
    if (!ended_) end({.kind = EndingKind::peer_lost, .job_rank = e.rank(), .text = e.what()});
    throw;
  } catch (const Timeout& e) {
    if (!ended_) end({.kind = EndingKind::timeout, .text = e.what()});
    throw;
  } catch (const Mismatch& e) {
    if (!ended_) end({.kind = EndingKind::mismatch, .text = e.what()});
    throw;
  } catch (const std::exception& e) {
    if (!ended_) end({.kind = EndingKind::aborted, .text = e.what()});
    throw;
  }
}

/// Ends the group for all, unless somebody was quicker; this member keeps its own reason.
void LocalEngine::end(EndingReason reason) {
  reason.found_by = job_.identity().rank;
  ended_ = reason;
  end_with(control_.ending(), reason);
  announce(job_.board());
}

void LocalEngine::check_open() {
  if (ended_) ended_->raise();
  if (is_open(control_.ending())) [[likely]] {
    return;
  }
  EndingReason reason = reason_of(control_.ending());
  if (reason.kind != EndingKind::mismatch && reason.found_by >= 0) {
    fmt::format_to(std::back_inserter(reason.text), " (found by rank {})", reason.found_by);
  }
  if (reason.kind == EndingKind::peer_lost) {
    job_.rendezvous().blame(reason.job_rank, reason.text);
  }
  ended_ = std::move(reason);
  ended_->raise();
}

void LocalEngine::abort(const std::string& reason) noexcept {
  try {
    if (!ended_) end({.kind = EndingKind::aborted, .text = reason});
  } catch (const std::exception& e) {
    log().error("group \"{}\" could not be ended: {}", group_.name, e.what());
  }
}

}  // namespace tutti
