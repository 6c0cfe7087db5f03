#include "comm/local/control_arena.h"

#include <utility>

namespace tutti {
namespace {

constexpr std::size_t kProgressBytes = round_up(sizeof(MemberProgress), kPageBytes);
constexpr std::size_t kRingBytes = kRing * kInlineBytes;
constexpr std::size_t kBlockBytes = kProgressBytes + kRingBytes + 4 * kChunkBytes;
constexpr std::size_t kEndingBytes = round_up(sizeof(Ending), kPageBytes);
static_assert(kBlockBytes % kPageBytes == 0);

}  // namespace

std::size_t ControlArena::bytes(int members) {
  return kEndingBytes + static_cast<std::size_t>(members) * kBlockBytes;
}

ControlArena::ControlArena(Arena arena, int members) : arena_(std::move(arena)) {
  std::byte* at = arena_.data();
  ending_ = reinterpret_cast<Ending*>(at);
  at += kEndingBytes;
  for (int member = 0; member < members; ++member, at += kBlockBytes) {
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

}  // namespace tutti
