// Averaging of copies that are on several hosts: see replica_averaging.h.

#include <cstring>

#include "comm/host_copies.h"
#include "kernels/norm.h"
#include "sync/averaging/replica_averaging.h"

namespace tutti {

std::byte* ReplicaAveraging::given_message(const ElementRange& tile, std::size_t logical) const {
  const auto place = first_tile_[tile.parameter] + static_cast<std::size_t>(tile.begin / kTile);
  return given_->data() + (place * copies_.size() + logical) * kGivenBytes;
}

double& ReplicaAveraging::given_squares(const ElementRange& tile, std::size_t logical) const {
  return *reinterpret_cast<double*>(given_message(tile, logical) + int8_bytes(kTile));
}

void ReplicaAveraging::give(const std::vector<ElementRange>& ranges) {
  const auto& hosts = copies_.hosts();
  for (const auto& range : ranges) {
    const auto p = range.parameter;
    if (!rounds_.is_sent(p)) continue;
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      if (!hosts.gives(l)) continue;
      const auto& copy = copies_.of(l);
      if (!given_) send_to_hosts(group_, copy.master(p) + offset_of(range), bytes_of(range));
      for (const auto& tile : given_ ? tiles_of(range) : std::vector<ElementRange>()) {
        const auto bytes = int8_bytes(tile.end - tile.begin);
        auto* const to = given_message(tile, l);
        std::memcpy(to, write_message(tile, l), bytes);
        squares_of_blocks(residual(p, l) + tile.begin, DType::float32, tile.end - tile.begin,
                          {&given_squares(tile, l), 1});
        send_to_hosts(group_, to, bytes);
        send_to_hosts(group_, &given_squares(tile, l), sizeof(double));
      }
      if (options_.state != StateAtAveraging::average) continue;
      for (int k = 0; k < copy.states(p); ++k) {
        send_to_hosts(group_, copy.state(p, k) + offset_of(range), bytes_of(range));
      }
    }
  }
}

/// Only what messages lack differs.
void ReplicaAveraging::bring_kept() {
  if (!given_) return;
  std::vector<HostPiece> pieces;
  for (const auto p : copies_.parameters()) {
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      pieces.push_back({copies_.hosts().home(l), reinterpret_cast<std::byte*>(residual(p, l)),
                        plan_.bytes_of(p)});
    }
  }
  copy_to_hosts(group_, pieces, {.label = "what differences lack"});
}

void ReplicaAveraging::spread_kept() {
  if (!kept_) return;
  copy_to_hosts(group_, kept_->memory().data(), kept_->bytes());
  if (!given_) return;
  if (group_.state()->team().rank == 0) {
    for (const auto p : copies_.parameters()) {
      for (const auto& tile : tiles_of({p, 0, plan_.parameters()[p].spec.count})) {
        for (std::size_t l = 0; l < copies_.size(); ++l) {
          squares_of_blocks(residual(p, l) + tile.begin, DType::float32, tile.end - tile.begin,
                            {&given_squares(tile, l), 1});
        }
      }
    }
  }
  group_.barrier({.label = "what differences lack"});
}

}  // namespace tutti
