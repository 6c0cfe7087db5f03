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

void LocalCollectives::publish_staged(const Pending& operation, std::uint64_t chunk,
                                      std::uint64_t number) {
  publish(job_, control_.progress(members_.rank).staged.value, number + 1,
          {{control_.staging(members_.rank, number), operation.transfer.staged_bytes(chunk)}},
          with_all(control_.progress(0).staged.value, member_ranks_));
}

void LocalCollectives::publish_worked(const Pending& operation, std::uint64_t chunk,
                                      std::uint64_t number) {
  const auto piece = operation.transfer.result_piece(chunk);
  publish(job_, control_.progress(members_.rank).worked.value, number + 1,
          {{control_.results(members_.rank, number) + piece.begin, piece.bytes}},
          with_all(control_.progress(0).worked.value, member_ranks_));
}

}  // namespace tutti
