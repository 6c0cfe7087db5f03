// A lane of a group whose members are on several hosts: each host has all of the group's memory,
// and what a member writes into its own part is stored on all of them (job/publish.h).

#include "comm/local/local_collectives.h"
#include "job/publish.h"

namespace tutti {

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

}  // namespace tutti
