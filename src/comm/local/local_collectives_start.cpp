// Creation of a local group, and start of its operations.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/local_collectives.h"
#include "job/gather.h"
#include "job/wire/rank_set.h"
#include "memory/memory_need.h"

namespace tutti {
namespace {

std::string make_tag(JobState& job, const LocalGroup& group) {
  const auto tag = [&](const std::string& which) {
    return fmt::format("group \"{}\"{} of ranks {}", group.name, which,
                       rank_list(RankSet::of(group.ranks)));
  };
  const std::uint64_t made_before = job.next_number(tag(""));
  return tag(made_before == 0 ? "" : fmt::format(" number {}", made_before + 1));
}

}  // namespace

LocalCollectives::LocalCollectives(JobState& job, LocalGroup group)
    : job_(job),
      group_(std::move(group)),
      layout_(HostLayout::of(group_.host_of, group_.rank)),
      members_{group_.rank, static_cast<int>(group_.ranks.size()),
               FoldProgram::canonical(static_cast<int>(group_.ranks.size())),
               layout_.spans_hosts() ? &layout_ : nullptr},
      member_ranks_(RankSet::of(group_.ranks)),
      spans_hosts_(layout_.spans_hosts()),
      open_messages_{OpenMessages(layout_.hosts), OpenMessages(layout_.hosts),
                     OpenMessages(layout_.hosts), OpenMessages(layout_.hosts)},
      tag_(make_tag(job, group_)),
      control_(join_members()) {
  // First touch of the counters by their owner. Only this member writes them.
  for (Arrival& arrival : control_.progress(members_.rank).arrivals) {
    arrival.sequence.store(0, std::memory_order_relaxed);
  }
}

LocalCollectives::~LocalCollectives() {
  if (in_background_ && job_.is_own()) leave_background();
}

ControlArena LocalCollectives::join_members() {
  job_.require_hosts("the making of " + tag_);
  const std::size_t bytes = ControlArena::bytes(members_.size);
  const std::string refusal = refuse_memory(
      job_.system(), {.bytes_per_worker = bytes,
                      .workers = 1,
                      .what = fmt::format("the control memory of group \"{}\"", group_.name)});
  if (members_.size == 1) {
    if (!refusal.empty()) throw OutOfMemory(refusal);
    return {Arena::create(job_.system(), "group control", bytes), 1};
  }
  // Two rounds: in the second all say whether they have the memory.
  std::string failure;
  try {
    Arena control;
    try {
      control = exchange_control(refusal, failure);
    } catch (const PeerLost&) {
      throw;
    } catch (const Timeout&) {
      throw;
    } catch (const Error& e) {
      failure = fmt::format("rank {} could not receive the control memory of group \"{}\": {}",
                            job_.identity().rank, group_.name, e.what());
    }
    for (const Parcel& other : gather(job_, "the second round of making " + tag_, group_.ranks,
                                      Parcel{failure, {}}, group_.check)) {
      if (!other.bytes.empty()) throw OutOfMemory(other.bytes);
    }
    control.close_descriptor();
    return {std::move(control), members_.size};
  } catch (const PeerLost&) {
    throw;
  } catch (const Timeout&) {
    throw;
  } catch (const Error&) {
    // A member that cannot receive has reported its own failure to the others all the same.
    if (!failure.empty()) throw OutOfMemory(failure);
    throw;
  }
}

/// The first member of a host makes its memory, every member has a say on whether it fits. Why this
/// one does not have it then is left in `failure`.
Arena LocalCollectives::exchange_control(const std::string& refusal, std::string& failure) {
  const std::size_t bytes = ControlArena::bytes(members_.size);
  const auto of = [&](const char* what, const char* why) {
    return fmt::format("rank {} could not {} the control memory of group \"{}\": {}",
                       job_.identity().rank, what, group_.name, why);
  };
  Parcel parcel{refusal, {}};
  Arena control;
  const int maker = first_here();
  if (members_.rank == maker && refusal.empty()) {
    try {
      control = Arena::create(job_.system(), "group control", bytes);
      held_control_ = hold_block(tag_, control, true);
      parcel.descriptors.push_back(control.descriptor());
    } catch (const std::exception& e) {
      parcel.bytes = of("make", e.what());
    }
  }
  std::vector<Parcel> parcels =
      gather(job_, "the making of " + tag_, group_.ranks, std::move(parcel), group_.check);
  for (const Parcel& other : parcels) {
    if (failure.empty()) failure = other.bytes;
  }
  if (!failure.empty() || members_.rank == maker) return control;
  try {
    auto& given = parcels[static_cast<std::size_t>(maker)].descriptors;
    TUTTI_CHECK(given.size() == 1, "no memory came with {}", tag_);
    control = Arena::open(job_.system(), std::move(given.front()), bytes);
    held_control_ = hold_block(tag_, control, false);
  } catch (const Error& e) {
    failure = of("map", e.what());
  }
  return control;
}

std::uint64_t LocalCollectives::start(const Operation& operation) {
  job_.require_own();
  const InUse use(*this);
  const std::uint64_t sequence = started_ + 1;
  check_open(sequence);
  // Whatever had this place before is complete: at most kRing - 1 operations are under way.
  Pending& mine = pending(sequence);
  mine.patience = operation.deadline;
  if (sequence - known_finished_ > kRing - 1) make_room(sequence);
  mine.phase = Phase::arriving;
  mine.chunk = 0;
  mine.staged = 0;
  mine.travel = {};
  mine.transfer.begin(operation, members_, control_, sequence);
  mine.hash = write_record(control_.record(members_.rank, sequence), operation);
  mine.way = way_of(mine.transfer, operation.kind);
  if (mine.way != Way::one_wait) note_places(sequence, operation);
  switch (mine.way) {
    case Way::one_wait:
      mine.transfer.write_inline();
      break;
    case Way::by_place:
      begin_by_place(sequence);
      break;
    case Way::slices:
    case Way::links:
      begin_slices(sequence);
      break;
  }

  started_ = sequence;
  has_background_ = has_background_ || operation.in_background;
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  arrival.hash.store(mine.hash, std::memory_order_relaxed);
  arrival.finished.store(completed_, std::memory_order_relaxed);
  if (spans_hosts_) {
    publish_arrival(sequence);
  } else {
    arrival.sequence.store(sequence, std::memory_order_release);
    announce(job_.board());
  }
  return sequence;
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
    finished = std::min(
        finished, control_.arrival(member, completed_).finished.load(std::memory_order_acquire));
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

void LocalCollectives::note_places(std::uint64_t sequence, const Operation& operation) {
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  if (spans_hosts_) {
    // Nothing is in regions; what they are told by is the engine of links.
    arrival.regions = !have_links_ && channel_ != nullptr ? channel_->engine() : 0;
    arrival.in = arrival.out = {};
    return;
  }
  arrival.regions = regions_.hold(pending(sequence).pins);
  arrival.in = regions_.locate(members_.rank, operation.in.data, operation.in.bytes());
  arrival.out = regions_.locate(members_.rank, operation.out.data, operation.out.bytes());
}

/// Where waits are expensive, saving one is worth a copy. Members may decide differently, or give
/// more than has room: then the copies were in vain.
void LocalCollectives::begin_by_place(std::uint64_t sequence) {
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  const Transfer& transfer = pending(sequence).transfer;
  if (transfer.is_pairwise()
          ? transfer.contribution() > small_bytes(members_.size)
          : arrival.in.in_region() && arrival.out.in_region() && !job_.crowded()) {
    return;
  }
  arrival.in.region = Location::kInlined;
  transfer.write_inline();
}

void LocalCollectives::begin_slices(std::uint64_t sequence) {
  Pending& mine = pending(sequence);
  const Arrival& arrival = control_.arrival(members_.rank, sequence);
  const bool stages = mine.transfer.gives() && !arrival.in.in_region();
  if (!stages || members_.size == 1 || completed_ != sequence - 1) return;
  if (spans_hosts_ && have_links_.value_or(true)) return;
  // No other operation is under way, so the first chunk can be ready before the others look for it.
  if (chunks_done_ > 0 && !all_reached(Goal::worked, chunks_done_ - 1)) return;
  mine.transfer.assume_staging();
  stage_chunk(mine, 0);
}

}  // namespace tutti
