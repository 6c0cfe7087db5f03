#pragma once

// What a worker says of its shards of a step besides their gradients: one block per worker in
// shared memory, written by its owner before the step is published, read by all until it is
// complete.
//
// Threads: one. Failure: BadInput when there is no memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/group.h"

namespace tutti {

struct ShardHeader {
  /// No element of a sum of this worker's weighted gradients is larger.
  double bound = 0;
  /// First shard with a gradient that is not finite, and the first such parameter of it; −1: none.
  std::int64_t bad_shard = -1;
  std::int64_t bad_parameter = -1;
  std::int64_t ran = 0;         ///< shards with a weight above 0
  std::int64_t first_ran = -1;  ///< the first of them; −1: none
  std::int64_t asked = 0;       ///< shards that asked for indices
  std::int64_t in_halves = 0;   ///< its program may look at things before the update
  std::uint64_t notes = 0;      ///< bytes
};

class ShardBoard {
 public:
  /// Collective.
  ShardBoard(const Group& group, const std::string& name);

  ShardHeader& mine() { return *header_at(rank_); }
  const ShardHeader& of(int rank) const { return *header_at(rank); }
  int size() const { return size_; }

  /// Where this worker may write notes: bytes whose meaning is the upper layers'. It puts their
  /// number into its header.
  std::span<std::byte> notes_area();
  std::span<const std::byte> notes_of(int rank) const;

 private:
  ShardHeader* header_at(int rank) const;
  int rank_;
  int size_;
  SharedMemory memory_;
};

}  // namespace tutti
