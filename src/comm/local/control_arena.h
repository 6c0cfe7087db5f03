#pragma once

// The shared memory through which the members of a local group speak: how the group ended, then for
// each lane (group_lanes.h) a block per member that only this member writes. Zero-filled memory is
// the valid initial state.
//
//   member block = 2 staging halves | 2 result halves | kRing inline buffers | MemberProgress
//                  | kRing × what it gives to each member, what it takes from each
//
// Threads: atomics, and plain data published by them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/hosts/host_pipeline.h"
#include "comm/local/call_record.h"
#include "comm/local/ending.h"
#include "comm/local/location.h"
#include "job/wire/board.h"
#include "memory/arena.h"
#include "memory/sections.h"

namespace tutti {

/// Operations of a lane that may be under way at the same time, plus one.
inline constexpr int kRing = 8;
/// Most bytes that an inline buffer takes.
inline constexpr std::size_t kInlineBytes = std::size_t{8} * 1024;
/// Up to this many bytes per member, each member folds everything after one wait; above, members
/// own slices. Measured for two members (docs/group.md); the bytes that one reads grow with their
/// number.
constexpr std::size_t small_bytes(int members) noexcept {
  const std::size_t share = 2 * kInlineBytes / static_cast<std::size_t>(members);
  return share < 1024 ? 1024 : share < kInlineBytes ? share : kInlineBytes;
}
/// Above this many bytes and up to small_bytes(), an all-reduce of which all members' spans lie in
/// shared memory is done by slices as well: two waits, but nothing is copied.
inline constexpr std::size_t kCopyBytes = 2048;
/// Private memory passes through shared memory in pieces of this many bytes.
inline constexpr std::size_t kChunkBytes = std::size_t{512} * 1024;

/// A member's arrival at one operation: all that the others look at, in one cache line. What is not
/// atomic is written by operations that may go by slices, and stays until all have finished.
struct alignas(kCacheLine) Arrival {
  std::atomic<std::uint64_t> sequence;  ///< of the operation; the release store publishes the rest
  std::atomic<std::uint64_t> hash;      ///< of what members must agree on
  std::atomic<std::uint64_t> finished;  ///< operations the member was through with by then
  std::uint64_t regions;                ///< bit i: the member has region i mapped
  Location in;
  Location out;
};
static_assert(sizeof(Arrival) == kCacheLine);

struct alignas(kCacheLine) MemberProgress {
  std::array<Arrival, kRing> arrivals;
  std::array<CallRecord, kRing> records;
  Counter staged;    ///< chunks of this lane's large operations that lie in shared memory
  Counter worked;    ///< chunks folded, or fetched
  Counter finished;  ///< operations of which this member reads nothing any more
  HostPipeline::Counters on_host;  ///< chunks between hosts, known on this member's host alone
};

class ControlArena {
 public:
  /// The part of lane 0. `arena` has room for `lanes`.
  ControlArena(Arena arena, int members, int lanes = 1);
  static std::size_t bytes(int members, int lanes = 1);
  /// The part of another lane, in the same memory.
  ControlArena of_lane(int lane) const;

  /// How the group ended: one for all lanes.
  Ending& ending() const { return parts_->ending.front(); }
  MemberProgress& progress(int member) const { return block(member).progress.front(); }
  Arrival& arrival(int member, std::uint64_t sequence) const {
    return progress(member).arrivals[sequence % kRing];
  }
  CallRecord& record(int member, std::uint64_t sequence) const {
    return progress(member).records[sequence % kRing];
  }
  std::byte* inline_buffer(int member, std::uint64_t sequence) const {
    return block(member).inline_buffers[sequence % kRing];
  }
  /// The memory for a member's data that others read, and for results that others read.
  std::byte* staging(int member, std::uint64_t chunk) const {
    return block(member).chunks[chunk % 2];
  }
  std::byte* results(int member, std::uint64_t chunk) const {
    return block(member).chunks[2 + chunk % 2];
  }
  /// Elements that the member gives to each other in an all-to-all of unequal parts, and then those
  /// that it takes from each.
  std::span<std::int64_t> counts(int member, std::uint64_t sequence) const {
    return {block(member).counts[sequence % kRing], 2 * static_cast<std::size_t>(members_)};
  }

 private:
  struct Block {
    Block(Sections& at, int members);
    SectionRows<std::byte> chunks;
    SectionRows<std::byte> inline_buffers;
    Section<MemberProgress> progress;
    SectionRows<std::int64_t> counts;
  };
  struct Parts {
    Parts(Sections& at, int members, int lanes);
    Section<Ending> ending;
    std::vector<Block> blocks;  ///< of lane 0's members, then of those of the next lane
  };
  const Block& block(int member) const { return blocks_[member]; }

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<const Parts> parts_;
  int members_;
  const Block* blocks_;  ///< of the lane
};

}  // namespace tutti
