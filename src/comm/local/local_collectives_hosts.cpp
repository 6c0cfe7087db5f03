// A group whose members are on several hosts: each host has all of the group's memory, and what a
// member writes into its own part is stored on all of them (job/publish.h).

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/local_collectives.h"
#include "job/gather.h"
#include "job/publish.h"
#include "kernels/hash.h"

namespace tutti {

std::shared_ptr<void> LocalCollectives::hold_block(const std::string& name, const Arena& arena,
                                                   bool gives) {
  if (!spans_hosts_) return {};
  // The board's number is below all of these.
  const std::uint64_t number = digest(name) | (std::uint64_t{1} << 63);
  return job_.hold_block(number, arena.data(), arena.bytes(),
                         gives ? arena.descriptor() : FileDescriptor());
}

/// One arena of this host for the blocks of all members. What this member cannot make, receive or
/// map is left in `failure`.
LocalCollectives::CommonArena LocalCollectives::exchange_common_arena(const MemoryRequest& request,
                                                                      std::string& failure) {
  const std::size_t blocks = request.common ? 1 : static_cast<std::size_t>(members_.size);
  const std::size_t bytes = round_up(request.bytes, kPageBytes) * blocks;
  const std::string name = fmt::format("memory {} of {}", ++allocations_, tag_);
  const int maker = first_here();
  const auto of = [&](const char* what, const char* why) {
    return fmt::format("rank {} could not {} {}: {}",
                       group_.ranks[static_cast<std::size_t>(members_.rank)], what, request.what,
                       why);
  };
  CommonArena made;
  Arena& arena = made.arena;
  Parcel parcel;
  try {
    if (members_.rank == maker) {
      arena = Arena::create(job_.system(), request.what, bytes);
      parcel.descriptors.push_back(arena.descriptor());
      made.held = hold_block(name, arena, true);
    }
  } catch (const std::exception& e) {
    failure = parcel.bytes = of("allocate", e.what());
  }
  try {
    auto parcels = gather(job_, name, group_.ranks, std::move(parcel));
    for (const Parcel& given : parcels) {
      if (failure.empty()) failure = given.bytes;
    }
    if (!failure.empty() || members_.rank == maker) return made;
    try {
      auto& files = parcels[static_cast<std::size_t>(maker)].descriptors;
      TUTTI_CHECK(files.size() == 1, "no memory came with {}", name);
      arena = Arena::open(job_.system(), std::move(files.front()), bytes);
      made.held = hold_block(name, arena, false);
    } catch (const std::exception& e) {
      failure = of("map", e.what());
    }
  } catch (const PeerLost&) {
    end_with_current_exception();
    throw;
  } catch (const Timeout&) {
    end_with_current_exception();
    throw;
  } catch (const Error& e) {
    failure = of("receive", e.what());
  }
  return made;
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
