// How a local group ends before its time: one member finds the reason, all fail with it.

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/scoped_flag.h"
#include "comm/local/local_collectives.h"
#include "job/wire/rank_set.h"

namespace tutti {

RankSet LocalCollectives::missing(Goal goal, std::uint64_t value) const {
  if (goal == Goal::travelled) return pipeline_->late();
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
                     describe(control_.record(members_.rank, shown), members_.size), call_of(shown),
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
    end_operation(sequence);
  }
}

void LocalCollectives::fail_mismatch(std::uint64_t sequence, std::string_view how) {
  end({.kind = EndingKind::mismatch,
       .text = fmt::format("members of group \"{}\" disagree in call {}{}", group_.name,
                           call_of(sequence), how)});
  ended_->raise();
}

/// All members have made the calls before one that they have all made: where two of them differ,
/// everybody sees the first.
void LocalCollectives::fail_first_mismatch(std::uint64_t sequence) {
  LocalCollectives* first = this;
  std::uint64_t first_sequence = sequence;
  for (LocalCollectives* const lane : shared_.lanes) {
    const std::uint64_t found = lane->first_mismatch_up_to(call_of(sequence));
    if (found == 0 || lane->call_of(found) > first->call_of(first_sequence)) continue;
    first = lane;
    first_sequence = found;
  }
  const auto pair = first->pending(first_sequence).transfer.disagreeing();
  first->fail_mismatch(first_sequence, first->calls_agree(first_sequence) && pair
                                           ? first->how_pair_differs(first_sequence, *pair)
                                           : first->how_calls_differ(first_sequence));
}

std::uint64_t LocalCollectives::first_mismatch_up_to(std::uint64_t call) const {
  for (std::uint64_t sequence = completed_ + 1; sequence <= started_; ++sequence) {
    if (call_of(sequence) > call || !all_reached(Goal::arrived, sequence)) return 0;
    const Transfer& transfer = pending_[sequence % kRing].transfer;
    if (!calls_agree(sequence) || transfer.disagreeing()) return sequence;
  }
  return 0;
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
    fail(e.what());
  }
}

void LocalCollectives::end_operation(std::uint64_t sequence) {
  end_with_current_exception();
  if (!has_succeeded(sequence)) throw;
}

/// Ends the group for all, unless another member was quicker; this member keeps its own reason.
void LocalCollectives::end(EndingReason reason) {
  const ScopedFlag is_ending(shared_.is_ending);
  reason.found_by = job_.identity().rank;
  end_with(
      job_, control_.ending(), reason, static_cast<int>(shared_.lanes.size()),
      [this](int lane) { return shared_.lanes[static_cast<std::size_t>(lane)]->first_failed(); });
  ended_ = std::move(reason);
  // Where this throws, every call has failed.
  ended_->first_failed = reason_of(control_.ending(), job_).first_failed;
}

/// False where slices are fetched and a member that gives from memory of its own may leave as soon
/// as it has its result: then it may have succeeded in a call that fails for the others.
bool LocalCollectives::ends_alike(std::uint64_t sequence) {
  const Pending& operation = pending(sequence);
  return operation.way == Way::one_wait || operation.way == Way::links ||
         operation.transfer.all_see_all_work();
}

std::uint64_t LocalCollectives::first_failed() {
  std::uint64_t sequence = completed_ + 1;
  while (lacks_nothing(sequence)) ++sequence;
  return sequence;
}

bool LocalCollectives::lacks_nothing(std::uint64_t sequence) {
  if (sequence > started_ || !ends_alike(sequence)) return false;
  const Pending& operation = pending(sequence);
  if (operation.phase == Phase::arriving) {
    return operation.way != Way::slices && all_reached(Goal::arrived, sequence) &&
           calls_agree(sequence) && !operation.transfer.disagreeing() &&
           (operation.way == Way::one_wait || all_inlined(sequence));
  }
  return operation.phase == Phase::working && operation.chunk + 1 == operation.transfer.chunks() &&
         all_reached(Goal::worked, chunks_done_ + operation.transfer.chunks());
}

bool LocalCollectives::has_succeeded(std::uint64_t sequence) {
  return sequence <= started_ && sequence < ended_->first_failed[static_cast<std::size_t>(lane_)] &&
         ends_alike(sequence);
}

void LocalCollectives::check_open(std::uint64_t sequence) {
  if (ended_) {
    if (has_succeeded(sequence)) return;
    ended_->raise();
  }
  if (is_open(control_.ending())) [[likely]] {
    return;
  }
  const ScopedFlag is_ending(shared_.is_ending);
  EndingReason reason = reason_of(control_.ending(), job_);
  if (reason.kind != EndingKind::mismatch && reason.kind != EndingKind::peer_failed) {
    fmt::format_to(std::back_inserter(reason.text), " (found by rank {})", reason.found_by);
  }
  // Members find a mismatch together; of everything else, one of them has told the others.
  if (reason.kind != EndingKind::mismatch) {
    const bool names_one = reason.kind == EndingKind::peer_lost;
    job_.rendezvous().blame(names_one ? reason.job_rank : reason.found_by, reason.text);
  }
  ended_ = std::move(reason);
  if (!has_succeeded(sequence)) ended_->raise();
}

}  // namespace tutti
