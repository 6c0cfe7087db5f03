#include "torch/gradients/pinned_arena.h"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "base/log_line.h"

namespace tutti {

PinnedArena::PinnedArena(HostCopies& host, StepExchange& exchange)
    : host_(host), exchange_(exchange), arena_(exchange.nodes().arena()), slots_(kMaxSlots) {}

PinnedArena::~PinnedArena() {
  try {
    host_.settle();
  } catch (const std::exception&) {
    return;  // the copies' own end says so
  }
}

/// Slot 0 lies with the sums.
bool PinnedArena::has(int slot) {
  auto& pinned = slots_[static_cast<std::size_t>(slot)];
  if (pinned || !is_offered_) return pinned != nullptr;
  const auto& plan = exchange_.plan();
  std::string problem;
  pinned = RegisteredMemory::of(host_.device().device(), arena_.data() + plan.slot_offset(slot),
                                slot == 0 ? plan.base_bytes() : plan.slot_bytes(), problem);
  if (pinned) return true;
  is_offered_ = false;
  if (exchange_.nodes().rank() == 0) {
    log_info(fmt::format("{}: gradients take one more copy by the host each way", problem));
  }
  return false;
}

std::byte* PinnedArena::result(std::size_t parameter) {
  const bool has_bytes = exchange_.plan().parameters()[parameter].node_count() > 0;
  return has_bytes && has(0) ? exchange_.nodes().result(parameter) : nullptr;
}

}  // namespace tutti
