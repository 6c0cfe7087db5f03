// How a local group ends before its time: one member finds the reason, all fail with it.

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "comm/local/local_collectives.h"
#include "job/wire/rank_set.h"

namespace tutti {

RankSet LocalCollectives::missing(Goal goal, std::uint64_t value) const {
  if (goal == Goal::travelled) return late_in_travel(pending_[(completed_ + 1) % kRing]);
  RankSet late;
  for (int member = 0; member < members_.size; ++member) {
    if (member != members_.rank && !has_reached(member, goal, value)) {
      late.insert(group_.ranks[static_cast<std::size_t>(member)]);
    }
  }
  return late;
}

std::string LocalCollectives::what(std::uint64_t sequence) const {
  // A full ring is waited for before the new operation has a record.
  const std::uint64_t shown = std::min(sequence, started_);
  return fmt::format("{}, call {} of group \"{}\"",
                     describe(control_.record(members_.rank, shown), members_.size), shown,
                     group_.name);
}

void LocalCollectives::poll_peers(Goal goal, std::uint64_t value, std::uint64_t sequence) {
  check_open(sequence);
  const auto now = job_.system().now();
  if (!polled_ || polled_->goal != goal || polled_->value != value) {
    polled_ = Polled{goal, value, now, now, nullptr};
    return;
  }
  constexpr std::chrono::milliseconds kLookInterval{10};
  if (now - polled_->looked < kLookInterval) return;
  polled_->looked = now;
  try {
    if (!polled_->watch) {
      WaitSubject subject = subject_of(goal, value, sequence);
      subject.deadline.at -= now - polled_->since;
      polled_->watch = std::make_unique<WaitWatch>(job_, std::move(subject), polled_->since);
    }
    polled_->watch->check();
  } catch (...) {
    end_with_current_exception();
    if (!has_succeeded(sequence)) throw;
  }
}

void LocalCollectives::fail_mismatch(std::uint64_t sequence, std::string_view how) {
  end({.kind = EndingKind::mismatch,
       .text = fmt::format("members of group \"{}\" disagree in call {}{}", group_.name, sequence,
                           how)});
  ended_->raise();
}

std::string LocalCollectives::how_calls_differ(std::uint64_t sequence) const {
  std::string text;
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
                   alike.size() > 1 ? "s" : "", rank_list(RankSet::of(alike)),
                   describe(control_.record(member, sequence), members_.size));
    separator = ';';
  }
  return text;
}

std::string LocalCollectives::how_pair_differs(std::uint64_t sequence,
                                               const Transfer::Pair& pair) const {
  const auto [giver, taker] = pair;
  const auto rank_of = [&](int member) { return group_.ranks[static_cast<std::size_t>(member)]; };
  const auto at = [&](int member, int place) {
    return control_.counts(member, sequence)[static_cast<std::size_t>(place)];
  };
  return fmt::format(", {}: rank {} gives rank {} {} elements, which takes {} from it",
                     describe(control_.record(giver, sequence), members_.size), rank_of(giver),
                     rank_of(taker), at(giver, taker), at(taker, members_.size + giver));
}

void LocalCollectives::fail(std::string_view why) {
  job_.require_own();
  if (ended_) return;
  const int self = job_.identity().rank;
  end({.kind = EndingKind::peer_failed,
       .job_rank = self,
       .text = fmt::format("rank {} has failed, and with it group \"{}\": {}", self, group_.name,
                           why)});
}

void LocalCollectives::end_with_current_exception() {
  if (ended_) return;
  try {
    throw;
  } catch (const PeerLost& e) {
    end({.kind = EndingKind::peer_lost, .job_rank = e.rank(), .text = e.what()});
  } catch (const Timeout& e) {
    end({.kind = EndingKind::timeout, .text = e.what()});
  } catch (const Mismatch& e) {
    end({.kind = EndingKind::mismatch, .text = e.what()});
  } catch (const std::exception& e) {
    end({.kind = EndingKind::aborted, .text = e.what()});
  }
}

/// Ends the group for all, unless another member was quicker; this member keeps its own reason.
void LocalCollectives::end(EndingReason reason) {
  reason.found_by = job_.identity().rank;
  end_with(job_, control_.ending(), reason,
           [this] { return completed_ + (lacks_nothing() ? 2 : 1); });
  ended_ = std::move(reason);
  ended_->call = reason_of(control_.ending(), job_).call;  // where it throws, every call has failed
}

/// False where slices are fetched and a member that gives from memory of its own may leave as soon
/// as it has its result: then it may have succeeded in a call that fails for the others.
bool LocalCollectives::ends_alike(std::uint64_t sequence) {
  const Pending& operation = pending(sequence);
  return operation.way == Way::one_wait || operation.way == Way::links ||
         operation.transfer.all_see_all_work();
}

bool LocalCollectives::lacks_nothing() {
  const std::uint64_t sequence = completed_ + 1;
  if (started_ == completed_ || !ends_alike(sequence)) return false;
  const Pending& oldest = pending(sequence);
  if (oldest.phase == Phase::arriving) {
    return oldest.way != Way::slices && all_reached(Goal::arrived, sequence) &&
           calls_agree(sequence) && !oldest.transfer.disagreeing() &&
           (oldest.way == Way::one_wait || all_inlined(sequence));
  }
  return oldest.phase == Phase::working && oldest.chunk + 1 == oldest.transfer.chunks() &&
         all_reached(Goal::worked, chunks_done_ + oldest.transfer.chunks());
}

bool LocalCollectives::has_succeeded(std::uint64_t sequence) {
  return sequence <= started_ && sequence < ended_->call && ends_alike(sequence);
}

void LocalCollectives::check_open(std::uint64_t sequence) {
  if (ended_) {
    if (has_succeeded(sequence)) return;
    ended_->raise();
  }
  if (is_open(control_.ending())) [[likely]] {
    return;
  }
  EndingReason reason = reason_of(control_.ending(), job_);
  if (reason.kind != EndingKind::mismatch && reason.kind != EndingKind::peer_failed) {
    fmt::format_to(std::back_inserter(reason.text), " (found by rank {})", reason.found_by);
  }
  if (reason.kind == EndingKind::peer_lost) {
    job_.rendezvous().blame(reason.job_rank, reason.text);
  }
  ended_ = std::move(reason);
  if (!has_succeeded(sequence)) ended_->raise();
}

}  // namespace tutti
