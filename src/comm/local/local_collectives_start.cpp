// Start of a lane's operations.

#include <algorithm>

#include "comm/local/local_collectives.h"

namespace tutti {

LocalCollectives::LocalCollectives(LocalMembers& members, int lane)
    : shared_(members),
      lane_(lane),
      job_(members.job),
      group_(members.group),
      members_(members.members),
      member_ranks_(members.ranks),
      spans_hosts_(members.spans_hosts),
      regions_(members.regions),
      ended_(members.ended),
      control_(members.control.of_lane(lane)),
      lane_members_(members, control_) {
  // First touch of the counters by their owner. Only this member writes them.
  for (Arrival& arrival : control_.progress(members_.rank).arrivals) {
    arrival.sequence.store(0, std::memory_order_relaxed);
  }
}

LocalCollectives::~LocalCollectives() {
  if (in_background_ && job_.is_own()) leave_background();
}

std::uint64_t LocalCollectives::start(const Operation& operation) {
  const std::uint64_t sequence = started_ + 1;
  check_open(sequence);
  // Whatever had this place before is complete: at most kRing - 1 operations are under way.
  Pending& mine = pending(sequence);
  mine.patience = operation.deadline;
  mine.input = operation.input;
  if (sequence - known_finished_ > kRing - 1) make_room(sequence);
  mine.phase = Phase::arriving;
  mine.chunk = 0;
  mine.staged = 0;
  mine.transfer.begin(operation, members_, control_, sequence);
  mine.hash = write_record(control_.record(members_.rank, sequence), operation);
  mine.way = way_of(mine.transfer, operation.kind);
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  if (mine.way != Way::one_wait) arrival.in = arrival.out = {};
  if (mine.way != Way::one_wait && !spans_hosts_) {  // hosts share no regions
    arrival.regions = regions_.hold(mine.pins);
    arrival.in = regions_.locate(members_.rank, operation.in.data, operation.in.bytes());
    arrival.out = regions_.locate(members_.rank, operation.out.data, operation.out.bytes());
  }
  started_ = sequence;
  has_background_ = has_background_ || operation.in_background;
  arrive_ready(Drive::poll);
  return sequence;
}

bool LocalCollectives::arrive_ready(Drive drive) {
  while (arrived_ < started_) {
    const auto sequence = arrived_ + 1;
    Pending& next = pending(sequence);
    if (next.input != nullptr) {
      try {
        if (drive == Drive::wait && arrived_ == completed_) {
          next.input->wait();
        } else if (!next.input->has_come()) {
          break;
        }
      } catch (...) {
        end_with_current_exception();
        throw;
      }
      next.input.reset();
    }
    lay_ready(sequence);
    arrived_ = sequence;
    ++moves_;
    Arrival& arrival = control_.arrival(members_.rank, sequence);
    arrival.hash.store(next.hash, std::memory_order_relaxed);
    arrival.finished.store(completed_, std::memory_order_relaxed);
    if (spans_hosts_) {
      publish_arrival(sequence);
    } else {
      arrival.sequence.store(sequence, std::memory_order_release);
      announce(job_.board());
    }
  }
  return arrived_ > completed_;
}

/// Slot and inline buffer of `sequence` are free once all members have finished the operation that
/// had them before. One less than kRing operations are ever under way, so that finish() needs to
/// wake nobody when nothing else is.
void LocalCollectives::make_room(std::uint64_t sequence) {
  while (sequence - completed_ > kRing - 1) advance(Drive::wait);
  if (sequence <= kRing) return;
  const std::uint64_t needed = sequence - kRing;
  std::uint64_t finished = completed_;
  for (int member = 0; member < members_.size; ++member) {
    if (member == members_.rank) continue;
    // Other hosts store an arrival as plain data, which its member may be replacing by now.
    const auto& seen = spans_hosts_ ? control_.progress(member).finished.value
                                    : control_.arrival(member, completed_).finished;
    finished = std::min(finished, seen.load(std::memory_order_acquire));
  }
  known_finished_ = std::max(known_finished_, finished);
  if (known_finished_ >= needed) return;
  wait_for(Goal::finished, needed, sequence, Drive::wait);
  known_finished_ = needed;
}

/// Alike on all members: from what they must agree on.
LocalCollectives::Way LocalCollectives::way_of(const Transfer& transfer, OperationKind kind) const {
  if (transfer.is_pairwise()) return Way::by_place;
  if (transfer.contribution() > small_bytes(members_.size)) return Way::slices;
  const bool may_pay = kind == OperationKind::all_reduce && transfer.contribution() > kCopyBytes;
  return may_pay ? Way::by_place : Way::one_wait;
}

void LocalCollectives::lay_ready(std::uint64_t sequence) {
  Pending& mine = pending(sequence);
  const Transfer& transfer = mine.transfer;
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  switch (mine.way) {
    case Way::one_wait:
      transfer.write_inline();
      return;
    case Way::by_place:
      // Where waits are expensive, saving one is worth a copy. Members may decide differently, or
      // give more than has room: then the copies were in vain.
      if (transfer.is_pairwise()
              ? transfer.contribution() > small_bytes(members_.size)
              : arrival.in.in_region() && arrival.out.in_region() && !job_.crowded()) {
        return;
      }
      arrival.in.region = Location::kInlined;
      transfer.write_inline();
      return;
    case Way::slices:
    case Way::links:
      break;
  }
  const bool stages = transfer.gives() && !arrival.in.in_region();
  if (!stages || members_.size == 1 || completed_ != sequence - 1) return;
  if (spans_hosts_) return;
  // No other operation is under way, so the first chunk can be ready before the others look for it.
  if (chunks_done_ > 0 && !lane_members_.all_reached(Goal::worked, chunks_done_ - 1)) return;
  mine.transfer.assume_staging();
  stage_chunk(mine, 0);
}

}  // namespace tutti
