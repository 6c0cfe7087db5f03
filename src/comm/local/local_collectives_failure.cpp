// How a local group ends before its time: one member finds the reason, all fail with it.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/scoped_flag.h"
#include "comm/local/local_collectives.h"

namespace tutti {

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
  const auto& members = first->lane_members_;
  const auto pair = first->pending(first_sequence).transfer.disagreeing();
  const std::string how = members.agree(first_sequence) && pair
                              ? members.how_pair_differs(first_sequence, *pair)
                              : members.how_calls_differ(first_sequence);
  first->end({.kind = EndingKind::mismatch,
              .text = fmt::format("members of group \"{}\" disagree in call {}{}", group_.name,
                                  first->call_of(first_sequence), how)});
  ended_->raise();
}

std::uint64_t LocalCollectives::first_mismatch_up_to(std::uint64_t call) const {
  for (std::uint64_t sequence = completed_ + 1; sequence <= arrived_; ++sequence) {
    if (call_of(sequence) > call || !lane_members_.all_reached(Goal::arrived, sequence)) return 0;
    const Transfer& transfer = pending_[sequence % kRing].transfer;
    if (!lane_members_.agree(sequence) || transfer.disagreeing()) return sequence;
  }
  return 0;
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
  if (sequence > arrived_ || !ends_alike(sequence)) return false;
  const Pending& operation = pending(sequence);
  if (operation.phase == Phase::arriving) {
    return operation.way != Way::slices && lane_members_.all_reached(Goal::arrived, sequence) &&
           lane_members_.agree(sequence) && !operation.transfer.disagreeing() &&
           (operation.way == Way::one_wait || lane_members_.all_inlined(sequence));
  }
  return operation.phase == Phase::working && operation.chunk + 1 == operation.transfer.chunks() &&
         lane_members_.all_reached(Goal::worked, chunks_done_ + operation.transfer.chunks());
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
