// Averaging of copies that are on several hosts: see replica_averaging.h.

#include <cstring>

#include "comm/host_copies.h"
#include "kernels/norm.h"
#include "memory/arena.h"
#include "sync/averaging/replica_averaging.h"

namespace tutti {

std::size_t ReplicaAveraging::place_of(const ElementRange& tile, std::size_t logical) const {
  return logical * first_tile_.back() + first_tile_[tile.parameter] +
         static_cast<std::size_t>(tile.begin / kTile);
}

std::byte* ReplicaAveraging::given_message(const ElementRange& tile, std::size_t logical) const {
  return given_->data() + place_of(tile, logical) * int8_bytes(kTile);
}

/// They follow all messages, so that those of a parameter are one piece.
double& ReplicaAveraging::given_squares(const ElementRange& tile, std::size_t logical) const {
  const auto messages = copies_.size() * first_tile_.back() * int8_bytes(kTile);
  return reinterpret_cast<double*>(given_->data() +
                                   round_up(messages, sizeof(double)))[place_of(tile, logical)];
}

void ReplicaAveraging::write_given(const std::vector<ElementRange>& ranges) {
  for (const auto& range : ranges) {
    const auto p = range.parameter;
    if (!rounds_.is_sent(p)) continue;
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      if (!copies_.hosts().gives(l)) continue;
      for (const auto& tile : tiles_of(range)) {
        std::memcpy(given_message(tile, l), write_message(tile, l),
                    int8_bytes(tile.end - tile.begin));
        auto& squares = given_squares(tile, l);
        squares_of_blocks(residual(p, l) + tile.begin, DType::float32, tile.end - tile.begin,
                          {&squares, 1});
        send_to_hosts(group_, &squares, sizeof squares);
      }
    }
  }
}

std::vector<HostPiece> ReplicaAveraging::given() const {
  std::vector<HostPiece> pieces;
  for (const auto p : copies_.parameters()) {
    const auto count = plan_.parameters()[p].spec.count;
    if (!rounds_.is_sent(p) || count == 0) continue;
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      const int home = copies_.hosts().home(l);
      const auto& copy = copies_.of(l);
      if (given_) {
        const auto last = (count - 1) / kTile * kTile;
        auto* const begin = given_message({p, 0, kTile}, l);
        auto* const end = given_message({p, last, count}, l) + int8_bytes(count - last);
        pieces.push_back({home, begin, static_cast<std::size_t>(end - begin)});
      } else {
        pieces.push_back({home, copy.master(p), plan_.bytes_of(p)});
      }
      if (options_.state != StateAtAveraging::average) continue;
      for (int k = 0; k < copy.states(p); ++k) {
        pieces.push_back({home, copy.state(p, k), plan_.bytes_of(p)});
      }
    }
  }
  return pieces;
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
