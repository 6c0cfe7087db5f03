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

int PinnedArena::slot_of(const std::byte* at) const {
  const auto offset = static_cast<std::size_t>(at - arena_.data());
  int slot = 0;
  while (slot + 1 < kMaxSlots && exchange_.plan().slot_offset(slot + 1) <= offset) ++slot;
  return slot;
}

/// Slot 0 lies with the sums.
bool PinnedArena::is_pinned(int slot) {
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

std::unique_ptr<SlotLoan> PinnedArena::lend(std::size_t parameter) {
  const auto& entry = exchange_.plan().parameters()[parameter];
  // Others are converted on their way into a slot.
  if (entry.spec.dtype != entry.node_type || entry.node_count() == 0) return nullptr;
  auto loan = exchange_.leaves().lend(parameter);
  return loan && is_pinned(slot_of(loan->at())) ? std::move(loan) : nullptr;
}

std::byte* PinnedArena::result(std::size_t parameter) {
  const bool has_bytes = exchange_.plan().parameters()[parameter].node_count() > 0;
  return has_bytes && is_pinned(0) ? exchange_.nodes().result(parameter) : nullptr;
}

}  // namespace tutti
