#include "sync/shard_board.h"

#include <fmt/format.h>

#include <new>

#include "memory/arena.h"

namespace tutti {
namespace {

/// Of address space; memory costs only what is written.
constexpr std::size_t kNotesBytes = std::size_t{64} << 20;

}  // namespace

ShardBoard::ShardBoard(const Group& group, const std::string& name)
    : rank_(group.rank()),
      size_(group.size()),
      memory_(group.allocate(kPageBytes + kNotesBytes, fmt::format("shard board of \"{}\"", name),
                             2 * kPageBytes)) {
  new (memory_.data()) ShardHeader;
  group.barrier({.label = "shard board"});
}

ShardHeader* ShardBoard::header_at(int rank) const {
  return std::launder(reinterpret_cast<ShardHeader*>(memory_.block(rank)));
}

std::span<std::byte> ShardBoard::notes_area() { return {memory_.data() + kPageBytes, kNotesBytes}; }

std::span<const std::byte> ShardBoard::notes_of(int rank) const {
  return {memory_.block(rank) + kPageBytes, of(rank).notes};
}

}  // namespace tutti
