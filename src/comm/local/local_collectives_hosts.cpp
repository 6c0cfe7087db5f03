// A lane of a group whose members are on several hosts: each host has all of the group's memory,
// and what a member writes into its own part is stored on all of them (job/publish.h).

#include <utility>
#include <vector>

#include "comm/local/host_transfer.h"
#include "comm/local/local_collectives.h"
#include "job/publish.h"
#include "job/wait.h"

namespace tutti {

void LocalCollectives::use(HostChannel& channel) {
  channel_ = &channel;
  std::vector<HostPipeline::Counters*> team;
  for (const int member : shared_.layout.team.members) {
    team.push_back(&control_.progress(member).on_host);
  }
  pipeline_.emplace(job_, shared_.layout, group_.ranks, channel, std::move(team),
                    HostPipeline::Options{.nodes = HostChannel::lane(HostChannel::kNodes, lane_),
                                          .sums = HostChannel::lane(HostChannel::kSums, lane_),
                                          .window = 2,
                                          .stages = true});
}

void LocalCollectives::publish_arrival(std::uint64_t sequence) {
  Arrival& arrival = control_.arrival(members_.rank, sequence);
  const Pending& mine = pending(sequence);
  const bool is_inline = mine.way == Way::one_wait || arrival.in.region == Location::kInlined;
  const std::size_t bytes = is_inline && mine.transfer.gives() ? mine.transfer.contribution() : 0;
  const auto counts = control_.counts(members_.rank, sequence);
  publish(job_, arrival.sequence, sequence,
          {published(arrival.hash, arrival.out),
           published(control_.record(members_.rank, sequence)),
           {control_.inline_buffer(members_.rank, sequence), bytes},
           {reinterpret_cast<const std::byte*>(counts.data()),
            mine.transfer.is_pairwise() ? counts.size_bytes() : 0}},
          with_all(control_.arrival(0, sequence).sequence, member_ranks_));
}

bool LocalCollectives::advance_over_links(std::uint64_t sequence, Drive drive) {
  Pending& oldest = pending(sequence);
  const std::uint64_t chunks = oldest.transfer.chunks();
  if (oldest.phase == Phase::staging) {
    const bool drives = shared_.layout.drives();
    HostTransfer work(oldest.transfer, chunks_done_);
    const auto arrived = [&] {
      if (drives) channel_->check();
      while (pipeline_->advance(work)) ++moves_;
      return pipeline_->is_collected();
    };
    try {
      if (drives) channel_->connect();
      if (drive == Drive::wait) {
        wait_until(job_, arrived, [&] { return subject_of(Goal::travelled, chunks, sequence); });
      } else if (!arrived()) {
        if (drive == Drive::poll) {
          poll_peers(Goal::travelled, pipeline_->through(HostPipeline::kCollected), sequence);
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

}  // namespace tutti
