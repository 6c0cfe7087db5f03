#include "comm/host_copies.h"

#include <cstdint>

#include "comm/group_state.h"
#include "job/publish.h"

namespace tutti {

void send_to_hosts(const Group& group, const void* at, std::size_t bytes) {
  send_ahead(group.state()->job(), {{at, bytes}});
}

void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options) {
  GroupState& state = *group.state();
  if (!state.spans_hosts()) return;
  if (const auto firsts = state.first_of_hosts()) {
    for (const auto& piece : pieces) {
      if (piece.bytes == 0) continue;
      Group(firsts).broadcast({piece.at, static_cast<std::int64_t>(piece.bytes), DType::uint8},
                              state.host_of(piece.member), options);
    }
  }
  group.barrier(options);
}

void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options) {
  const HostPiece piece{.at = at, .bytes = bytes};
  copy_to_hosts(group, {&piece, 1}, options);
}

}  // namespace tutti
