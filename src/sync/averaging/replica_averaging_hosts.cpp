// Averaging of copies that are on several hosts: see replica_averaging.h.

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "comm/host_copies.h"
#include "kernels/int8_blocks.h"
#include "kernels/norm.h"
#include "sync/averaging/replica_averaging.h"

namespace tutti {

/// Messages of all logical workers, and where they are 8-bit differences the squares of what each
/// lacks.
void ReplicaAveraging::make_room_for_given() {
  std::vector<std::size_t> bytes;
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    for (std::uint32_t p = 0; p < plan_.parameters().size(); ++p) {
      const auto& spec = plan_.parameters()[p].spec;
      bytes.push_back(spec.is_per_replica ? message_bytes(p, spec.count) : 0);
    }
  }
  given_ = memory_.group().allocate_common(
      std::max(bytes_of_sections<SectionList<std::byte>>(bytes), kSectionAlignment),
      fmt::format("{} of \"{}\"", sends_int8() ? "differences" : "given copies", options_.name));
  Sections at(given_->data());
  given_messages_ = SectionList<std::byte>(at, bytes);
  if (!sends_int8()) return;
  squares_ = memory_.add_common<SectionList<double>>(tiles_of_replicas(plan_, copies_.size()));
}

std::size_t ReplicaAveraging::message_bytes(std::uint32_t parameter, std::int64_t count) const {
  if (!sends_int8()) {
    const auto type = plan_.parameters()[parameter].node_type;
    return static_cast<std::size_t>(count) * size_of(type);
  }
  const auto full = static_cast<std::size_t>(count / kTile);
  const auto rest = count % kTile;
  return full * int8_bytes(kTile) + (rest > 0 ? int8_bytes(rest) : 0);
}

std::byte* ReplicaAveraging::given_message(const ElementRange& tile, std::size_t logical) const {
  return given_messages_[logical * plan_.parameters().size() + tile.parameter].data() +
         message_bytes(tile.parameter, tile.begin);
}

double& ReplicaAveraging::given_squares(const ElementRange& tile, std::size_t logical) const {
  return squares_[logical * plan_.parameters().size() + tile.parameter]
                 [static_cast<std::size_t>(tile.begin / kTile)];
}

void ReplicaAveraging::write_given(const std::vector<ElementRange>& ranges) {
  for (const auto& range : ranges) {
    const auto p = range.parameter;
    if (!rounds_.is_sent(p)) continue;
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      if (!copies_.hosts().gives(l)) continue;
      for (const auto& tile : tiles_of(range)) {
        const auto* const message =
            sends_int8() ? write_message(tile, l) : copies_.of(l).master(p) + offset_of(tile);
        std::memcpy(given_message(tile, l), message, message_bytes(p, tile.end - tile.begin));
        if (!sends_int8()) continue;
        auto& squares = given_squares(tile, l);
        squares_of_blocks(residual(p, l) + tile.begin, DType::float32, tile.end - tile.begin,
                          {&squares, 1});
        memory_.send({published(squares)});
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
        pieces.push_back({home, given_message({p, 0, 0}, l), message_bytes(p, count)});
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
  if (!given_ || !sends_int8()) return;
  std::vector<HostPiece> pieces;
  for (const auto p : copies_.parameters()) {
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      pieces.push_back({copies_.hosts().home(l), reinterpret_cast<std::byte*>(residual(p, l)),
                        plan_.bytes_of(p)});
    }
  }
  copy_to_hosts(memory_.group(), pieces, {.label = "what differences lack"});
}

void ReplicaAveraging::spread_kept() {
  if (!kept_) return;
  copy_to_hosts(memory_.group(), kept_->memory().data(), kept_->bytes());
  if (!given_ || !sends_int8()) return;
  if (memory_.group().state()->team().rank == 0) {
    for (const auto p : copies_.parameters()) {
      for (const auto& tile : tiles_of({p, 0, plan_.parameters()[p].spec.count})) {
        for (std::size_t l = 0; l < copies_.size(); ++l) {
          squares_of_blocks(residual(p, l) + tile.begin, DType::float32, tile.end - tile.begin,
                            {&given_squares(tile, l), 1});
        }
      }
    }
  }
  memory_.group().barrier({.label = "what differences lack"});
}

}  // namespace tutti
