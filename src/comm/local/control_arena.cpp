#include "comm/local/control_arena.h"

#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

constexpr std::size_t kProgressBytes = round_up(sizeof(MemberProgress), kPageBytes);
constexpr std::size_t kRingBytes = kRing * kInlineBytes;
constexpr std::size_t kCountsAt = kProgressBytes + kRingBytes + 4 * kChunkBytes;
constexpr std::size_t kEndingBytes = round_up(sizeof(Ending), kPageBytes);
static_assert(kCountsAt % kPageBytes == 0);

std::size_t block_bytes(int members) {
  return kCountsAt +
         round_up(kRing * 2 * static_cast<std::size_t>(members) * sizeof(std::int64_t), kPageBytes);
}

}  // namespace

std::size_t ControlArena::bytes(int members, int lanes) {
  const auto blocks = static_cast<std::size_t>(members) * static_cast<std::size_t>(lanes);
  return kEndingBytes + blocks * block_bytes(members);
}

ControlArena::ControlArena(Arena arena, int members, int lanes)
    : arena_(std::make_shared<Arena>(std::move(arena))), lanes_(lanes) {
  find_blocks(members, 0);
}

ControlArena ControlArena::of_lane(int lane) const {
  TUTTI_CHECK(lane < lanes_, "lane {} of {}", lane, lanes_);
  ControlArena other = *this;
  other.find_blocks(static_cast<int>(progress_.size()), lane);
  return other;
}

void ControlArena::find_blocks(int members, int lane) {
  std::byte* at = arena_->data();
  ending_ = reinterpret_cast<Ending*>(at);
  at += bytes(members, lane);
  progress_.clear();
  for (int member = 0; member < members; ++member, at += block_bytes(members)) {
    progress_.push_back(reinterpret_cast<MemberProgress*>(at));
  }
}

std::byte* ControlArena::inline_buffer(int member, std::uint64_t sequence) const {
  return block(member) + kProgressBytes + (sequence % kRing) * kInlineBytes;
}

std::byte* ControlArena::staging(int member, std::uint64_t chunk) const {
  return block(member) + kProgressBytes + kRingBytes + (chunk % 2) * kChunkBytes;
}

std::byte* ControlArena::results(int member, std::uint64_t chunk) const {
  return staging(member, chunk) + 2 * kChunkBytes;
}

std::span<std::int64_t> ControlArena::counts(int member, std::uint64_t sequence) const {
  const std::size_t each = 2 * progress_.size();
  auto* const first = reinterpret_cast<std::int64_t*>(block(member) + kCountsAt);
  return {first + (sequence % kRing) * each, each};
}

}  // namespace tutti
