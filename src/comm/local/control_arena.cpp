#include "comm/local/control_arena.h"

#include <utility>

#include "base/check.h"

namespace tutti {

ControlArena::Block::Block(Sections& at, int members)
    : chunks(at, 4, kChunkBytes),
      inline_buffers(at, kRing, kInlineBytes),
      progress(at),
      counts(at, kRing, 2 * static_cast<std::size_t>(members)) {
  at.align(kPageBytes);
}

ControlArena::Parts::Parts(Sections& at, int members, int lanes) : ending(at) {
  at.align(kPageBytes);
  for (int k = 0; k < members * lanes; ++k) blocks.emplace_back(at, members);
}

ControlArena::ControlArena(Arena arena, int members, int lanes)
    : arena_(std::make_shared<Arena>(std::move(arena))), members_(members) {
  Sections at(arena_->data());
  parts_ = std::make_shared<const Parts>(at, members, lanes);
  blocks_ = parts_->blocks.data();
}

std::size_t ControlArena::bytes(int members, int lanes) {
  return bytes_of_sections<Parts>(members, lanes);
}

ControlArena ControlArena::of_lane(int lane) const {
  const auto first = static_cast<std::size_t>(lane) * static_cast<std::size_t>(members_);
  TUTTI_CHECK(first < parts_->blocks.size(), "lane {} of {} members' {} blocks", lane, members_,
              parts_->blocks.size());
  ControlArena other = *this;
  other.blocks_ = &parts_->blocks[first];
  return other;
}

}  // namespace tutti
