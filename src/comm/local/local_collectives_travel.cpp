// Large operations of a group on several hosts: what Transfer does with each chunk, in the
// order that members of this host and messages of others allow. Two chunks are under way, so that
// one travels while the other is folded.

#include <algorithm>

#include "comm/local/local_collectives.h"
#include "job/publish.h"
#include "job/wait.h"

namespace tutti {

bool LocalCollectives::advance_over_links(std::uint64_t sequence, Drive drive) {
  Pending& oldest = pending(sequence);
  const std::uint64_t chunks = oldest.transfer.chunks();
  if (oldest.phase == Phase::staging) {
    const auto arrived = [&] {
      if (layout_.drives()) shared_.channel->check();
      while (travel(oldest)) {
      }
      return oldest.travel.collected == chunks;
    };
    try {
      if (layout_.drives()) shared_.channel->connect();
      if (drive == Drive::wait) {
        wait_until(job_, arrived, [&] { return subject_of(Goal::travelled, chunks, sequence); });
      } else if (!arrived()) {
        if (drive == Drive::poll) {
          poll_peers(Goal::travelled, oldest.travel.collected, sequence);
        }
        return false;
      }
    } catch (...) {
      end_operation(sequence);
    }
    oldest.chunk = chunks - 1;
    oldest.phase = Phase::working;
    publish(job_, control_.progress(members_.rank).worked.value, chunks_done_ + chunks, {},
            with_all(control_.progress(0).worked.value, member_ranks_));
  }
  // Nobody leaves before all have their results: the operation ends alike for all, and what is
  // still on its way to another host comes from a worker that is there.
  if (!wait_for(Goal::worked, chunks_done_ + chunks, sequence, drive)) return false;
  chunks_done_ += chunks;
  finish(sequence);
  return true;
}

std::uint64_t LocalCollectives::least(Counter MemberProgress::*counter) const {
  std::uint64_t least = ~std::uint64_t{0};
  for (const int member : layout_.team.members) {
    least =
        std::min(least, (control_.progress(member).*counter).value.load(std::memory_order_acquire));
  }
  return least;
}

void LocalCollectives::tell(Counter MemberProgress::*counter, std::uint64_t value) {
  (control_.progress(members_.rank).*counter).value.store(value, std::memory_order_release);
  ++moves_;
  announce(job_.board());
}

/// Does with one chunk what can be done now; false where there is nothing. What others wait for
/// longest comes first.
bool LocalCollectives::travel(Pending& operation) {
  HostTravel& done = operation.travel;
  const Transfer& transfer = operation.transfer;
  const std::uint64_t chunks = transfer.chunks();
  const auto number = [this](std::uint64_t chunk) { return chunks_done_ + chunk; };
  const MemberProgress& driver = control_.progress(shared_.first_here());
  const auto driver_has = [&](const Counter& counter, std::uint64_t chunk) {
    return counter.value.load(std::memory_order_acquire) > number(chunk);
  };
  if (layout_.drives() && drive_link(operation)) return true;
  if (done.summed < chunks && driver_has(driver.came, done.summed)) {
    transfer.sum_for_hosts(done.summed, number(done.summed));
    tell(&MemberProgress::summed, number(++done.summed));
    return true;
  }
  if (done.folded < operation.staged && least(&MemberProgress::staged) > number(done.folded)) {
    transfer.fold_here(done.folded, number(done.folded));
    tell(&MemberProgress::folded, number(++done.folded));
    return true;
  }
  if (done.collected < chunks && driver_has(driver.gathered, done.collected)) {
    transfer.collect_from_hosts(done.collected, number(done.collected));
    tell(&MemberProgress::collected, number(++done.collected));
    return true;
  }
  const std::uint64_t next = number(operation.staged);
  if (operation.staged < chunks && (next < 2 || least(&MemberProgress::collected) >= next - 1)) {
    transfer.stage_for_hosts(operation.staged, next);
    tell(&MemberProgress::staged, number(++operation.staged));
    return true;
  }
  return false;
}

bool LocalCollectives::drive_link(Pending& operation) {
  HostTravel& done = operation.travel;
  const std::uint64_t chunks = operation.transfer.chunks();
  const auto number = [this](std::uint64_t chunk) { return chunks_done_ + chunk; };
  if (done.came < done.posted && !open_messages(HostChannel::kNodes, number(done.came)).any()) {
    tell(&MemberProgress::came, number(++done.came));
    return true;
  }
  if (done.gathered < done.posted_sums &&
      !open_messages(HostChannel::kSums, number(done.gathered)).any()) {
    tell(&MemberProgress::gathered, number(++done.gathered));
    return true;
  }
  if (done.posted_sums < done.came && least(&MemberProgress::summed) > number(done.posted_sums)) {
    post(operation, HostChannel::kSums, done.posted_sums++);
    return true;
  }
  if (done.posted < chunks && least(&MemberProgress::folded) > number(done.posted)) {
    post(operation, HostChannel::kNodes, done.posted++);
    return true;
  }
  return false;
}

/// Everything of a chunk that leaves for other hosts, or comes from them.
void LocalCollectives::post(Pending& operation, HostChannel::Lane lane, std::uint64_t chunk) {
  const std::uint64_t number = chunks_done_ + chunk;
  OpenMessages& open = open_messages(lane, number);
  const int link_lane = HostChannel::lane(lane, lane_);
  const auto visit = [&](int from, int to, const Transfer::Visit& visitor) {
    if (lane == HostChannel::kSums) {
      operation.transfer.visit_sums(chunk, number, from, to, visitor);
    } else {
      operation.transfer.visit_nodes(chunk, number, from, to, visitor);
    }
  };
  for (int host = 0; host < layout_.hosts; ++host) {
    if (host == layout_.here) continue;
    visit(host, layout_.here, [&](std::span<std::byte> bytes) {
      shared_.channel->receive(link_lane, host, bytes, open.add(host));
    });
    visit(layout_.here, host, [&](std::span<std::byte> bytes) {
      shared_.channel->send(link_lane, host, bytes, open.add(host));
    });
  }
}

/// Whose part the oldest chunk waits for that this member has not collected. Exactly those: workers
/// who seem to wait for one another would be told so.
RankSet LocalCollectives::late_in_travel(const Pending& operation) const {
  RankSet late;
  const HostTravel& done = operation.travel;
  const std::uint64_t chunk = done.collected;
  const std::uint64_t number = chunks_done_ + chunk;
  const auto rank_of = [&](int member) { return group_.ranks[static_cast<std::size_t>(member)]; };
  const auto add_behind = [&](Counter MemberProgress::*counter, std::uint64_t needed) {
    for (const int member : layout_.team.members) {
      const auto has = (control_.progress(member).*counter).value.load(std::memory_order_acquire);
      if (member != members_.rank && has < needed) late.insert(rank_of(member));
    }
  };
  const auto add_hosts = [&](HostChannel::Lane lane) {
    for (int host = 0; host < layout_.hosts; ++host) {
      if (open_messages(lane, number).any(host)) {
        late.insert(rank_of(layout_.first_of[static_cast<std::size_t>(host)]));
      }
    }
  };
  if (operation.staged <= chunk) {
    add_behind(&MemberProgress::collected, number - 1);
  } else if (done.folded <= chunk) {
    add_behind(&MemberProgress::staged, number + 1);
  } else if (!layout_.drives()) {
    late.insert(rank_of(shared_.first_here()));
  } else if (done.posted <= chunk) {
    add_behind(&MemberProgress::folded, number + 1);
  } else if (done.came <= chunk) {
    add_hosts(HostChannel::kNodes);
  } else if (done.posted_sums <= chunk) {
    add_behind(&MemberProgress::summed, number + 1);
  } else {
    add_hosts(HostChannel::kSums);
  }
  return late;
}

}  // namespace tutti
