// Where leaves are folded: in the arena, or elsewhere until a node is complete.

#include <algorithm>

#include "kernels/fold.h"
#include "sync/nodes/leaf_folder.h"

namespace tutti {

void LeafFolder::set(std::size_t parameter, std::uint8_t slot, const Moving& moving) {
  const auto& entry = plan_.parameters()[parameter];
  if (elsewhere_ != nullptr) {
    elsewhere_->set(parameter, slot, moving.hot, moving.weight, moving.may_stay);
  } else {
    scale_into(place(parameter, slot), entry.node_type, moving.hot, entry.spec.dtype, moving.count,
               moving.weight, largest_);
  }
}

void LeafFolder::add(std::size_t parameter, std::uint8_t slot, const Moving& moving) {
  const auto& entry = plan_.parameters()[parameter];
  if (elsewhere_ != nullptr) {
    elsewhere_->add(parameter, slot, moving.hot, moving.weight);
  } else {
    add_scaled(place(parameter, slot), entry.node_type, moving.hot, entry.spec.dtype, moving.count,
               moving.weight, largest_);
  }
}

bool LeafFolder::grows(Block block) const {
  const auto right = block.begin + block.size;
  return block.begin % (2 * block.size) == 0 && right + block.size <= *start_ + *count_ &&
         !std::binary_search(options_.node_boundaries.begin(), options_.node_boundaries.end(),
                             right);
}

void LeafFolder::let_leave(std::size_t parameter, std::size_t node, bool completes) {
  const auto slot = board_.slot_table(static_cast<int>(node))[parameter];
  if (slot == kAbsent || !elsewhere_->holds(parameter, slot)) return;
  use(parameter, slot);
  zero_copy_ += elsewhere_->leave(parameter, slot, place(parameter, slot), completes);
}

void LeafFolder::let_all_leave() {
  for (std::size_t k = 0; elsewhere_ != nullptr && k < nodes_.size(); ++k) {
    for (std::size_t p = 0; p < free_.size(); ++p) let_leave(p, k, false);
  }
}

}  // namespace tutti
