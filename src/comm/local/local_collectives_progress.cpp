// How operations of a lane come to their end, in the order in which they were started.

#include "comm/local/local_collectives.h"
#include "job/publish.h"
#include "job/wait.h"

namespace tutti {

bool LocalCollectives::test(std::uint64_t sequence) {
  try {
    while (completed_ < sequence) {
      if (ended_) check_open(completed_ + 1);
      if (!advance(Drive::poll)) return false;
    }
  } catch (const Error&) {
    return true;  // wait() throws it
  }
  return true;
}

bool LocalCollectives::progress() {
  if (shared_.is_ending) return false;
  const std::uint64_t before = moves_;
  try {
    while (completed_ < started_ && (!ended_ || has_succeeded(completed_ + 1)) &&
           advance(Drive::aside)) {
    }
  } catch (const Error&) {
    // Kept in ended_: wait() throws it.
  }
  return moves_ != before;
}

void LocalCollectives::enter_background() {
  if (!has_background_) return;
  if (ended_ || completed_ == started_) {
    has_background_ = false;
    return;
  }
  job_.background().add(*this);
  in_background_ = true;
  moved_by_ = std::this_thread::get_id();
}

void LocalCollectives::leave_background() {
  if (!in_background_) return;
  job_.background().remove(*this);
  in_background_ = false;
}

void LocalCollectives::move_to_this_thread() {
  if (!in_background_ || moved_by_ == std::this_thread::get_id()) return;
  leave_background();
  enter_background();
}

void LocalCollectives::wait(std::uint64_t sequence) {
  while (completed_ < sequence) {
    if (ended_) check_open(completed_ + 1);
    advance(Drive::wait);
  }
}

bool LocalCollectives::advance(Drive drive) {
  if (arrived_ < started_ && !arrive_ready(drive)) return false;
  const std::uint64_t sequence = completed_ + 1;
  Pending& oldest = pending(sequence);
  if (oldest.phase == Phase::arriving) {
    if (!wait_for(Goal::arrived, sequence, sequence, drive)) return false;
    if (!lane_members_.agree(sequence) || oldest.transfer.disagreeing())
      fail_first_mismatch(sequence);
    if (oldest.way == Way::by_place) {
      oldest.way = lane_members_.all_inlined(sequence) ? Way::one_wait : Way::slices;
    }
    if (oldest.way == Way::one_wait) {
      oldest.transfer.finish_inline();
      finish(sequence);
      return true;
    }
    // Hosts share no memory.
    std::uint64_t held_by_all = spans_hosts_ ? 0 : ~std::uint64_t{0};
    for (int member = 0; member < members_.size; ++member) {
      held_by_all &= control_.arrival(member, sequence).regions;
    }
    oldest.transfer.resolve(regions_, held_by_all);
    oldest.phase = Phase::staging;
    ++moves_;
    if (spans_hosts_) {
      oldest.way = Way::links;
      pipeline_->add(oldest.transfer.chunks());
    }
  }
  return oldest.way == Way::links ? advance_over_links(sequence, drive)
                                  : advance_large(sequence, drive);
}

bool LocalCollectives::advance_large(std::uint64_t sequence, Drive drive) {
  Pending& oldest = pending(sequence);
  const Transfer& transfer = oldest.transfer;
  MemberProgress& own = control_.progress(members_.rank);
  for (; oldest.chunk < transfer.chunks(); ++oldest.chunk) {
    const std::uint64_t number = chunks_done_ + oldest.chunk;
    if (oldest.phase == Phase::staging) {
      if (transfer.passes_through()) {
        // A half may be written again once all have worked on the chunk before last.
        if (oldest.staged == oldest.chunk) {
          if (number > 0 && !wait_for(Goal::worked, number - 1, sequence, drive)) return false;
          stage_chunk(oldest, oldest.chunk);
        }
        if (oldest.staged == oldest.chunk + 1 && oldest.staged < transfer.chunks() &&
            lane_members_.all_reached(Goal::worked, number)) {
          stage_chunk(oldest, oldest.staged);
        }
        if (!wait_for(Goal::staged, number + 1, sequence, drive)) return false;
      } else {
        own.staged.value.store(number + 1, std::memory_order_release);
      }
      // The others may have left, and use their memory again.
      check_open(sequence);
      transfer.work(oldest.chunk, number);
      own.worked.value.store(number + 1, std::memory_order_release);
      announce(job_.board());
      oldest.phase = Phase::working;
      ++moves_;
    }
    if (transfer.must_see_all_work() && !wait_for(Goal::worked, number + 1, sequence, drive)) {
      return false;
    }
    transfer.collect(oldest.chunk, number);
    oldest.phase = Phase::staging;
  }
  chunks_done_ += transfer.chunks();
  finish(sequence);
  return true;
}

/// `staged` also means that this member has collected all results of the chunk before last, so that
/// the others may write to that half.
void LocalCollectives::stage_chunk(Pending& operation, std::uint64_t chunk) {
  const std::uint64_t number = chunks_done_ + chunk;
  operation.transfer.stage(chunk, number);
  operation.staged = chunk + 1;
  ++moves_;
  control_.progress(members_.rank).staged.value.store(number + 1, std::memory_order_release);
  announce(job_.board());
}

/// The ending is looked at after the last read of others' memory, which the announcement of this
/// member's part has put before it.
void LocalCollectives::finish(std::uint64_t sequence) {
  check_open(sequence);
  completed_ = sequence;
  ++moves_;
  polled_.reset();
  Pending& done = pending(sequence);
  done.pins.clear();
  done.patience.reset();
  auto& finished = control_.progress(members_.rank).finished.value;
  if (spans_hosts_) {
    // Others wait for it where their ring is full, and otherwise hear of it by the next arrival.
    const bool is_last = started_ == completed_;
    return publish(
        job_, finished, sequence, {},
        is_last ? with_next() : with_all(control_.progress(0).finished.value, member_ranks_));
  }
  finished.store(sequence, std::memory_order_release);
  if (started_ != completed_) announce(job_.board());
}

bool LocalCollectives::wait_for(Goal goal, std::uint64_t value, std::uint64_t sequence,
                                Drive drive) {
  if (drive != Drive::wait) {
    if (lane_members_.all_reached(goal, value)) return true;
    if (drive == Drive::poll) poll_peers(goal, value, sequence);
    return false;
  }
  int next = 0;
  const auto ready = [&] {
    for (; next < members_.size; ++next) {
      if (lane_members_.waits_for(next) && !lane_members_.has_reached(next, goal, value))
        return false;
    }
    return true;
  };
  try {
    wait_until(job_, ready, [&] { return subject_of(goal, value, sequence); });
  } catch (...) {
    end_operation(sequence);
  }
  return true;
}

WaitSubject LocalCollectives::subject_of(Goal goal, std::uint64_t value, std::uint64_t sequence) {
  const auto missing = [this, goal, value] {
    return goal == Goal::travelled ? pipeline_->late() : lane_members_.behind(goal, value);
  };
  return {.missing = missing,
          .members = member_ranks_,
          .what = [this, sequence] { return what(sequence); },
          .check =
              [this, missing, sequence] {
                check_open(sequence);
                if (shared_.partners) shared_.partners(missing);
              },
          .deadline = job_.deadline(pending(sequence).patience),
          .needs_calls = goal == Goal::arrived};
}

}  // namespace tutti
