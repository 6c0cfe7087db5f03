// Shared memory of a local group: whether it fits is decided by all members before any of it is
// made.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "comm/local/local_engine.h"
#include "job/gather.h"
#include "memory/memory_need.h"

namespace tutti {
namespace {

/// One member's say on an allocation.
struct Verdict {
  std::uint64_t held = 0;           ///< regions that this member still has mapped
  std::array<char, 504> refusal{};  ///< empty: it fits
};
static_assert(std::is_trivially_copyable_v<Verdict>);

}  // namespace

Capabilities LocalEngine::capabilities() const {
  return {.views_peers = true, .native_all_reduce = false, .failure_notice = true, .lanes = 1};
}

SharedMemory LocalEngine::allocate(std::size_t bytes, std::string_view what,
                                   std::size_t used_bytes) {
  used_bytes = std::min(used_bytes, bytes);
  std::vector<Verdict> verdicts(static_cast<std::size_t>(members_.size));
  Verdict mine;
  std::vector<std::shared_ptr<void>> pins;
  mine.held = regions_.hold(pins);
  pins.clear();
  const std::string refusal = refuse_memory(
      job_.system(), {.bytes_per_worker = used_bytes, .workers = members_.size, .what = what});
  std::memcpy(mine.refusal.data(), refusal.data(),
              std::min(refusal.size(), mine.refusal.size() - 1));
  Operation exchange;
  exchange.kind = OperationKind::all_gather;
  exchange.in = {&mine, sizeof(Verdict), DType::uint8};
  exchange.out = {verdicts.data(), static_cast<std::int64_t>(verdicts.size() * sizeof(Verdict)),
                  DType::uint8};
  const std::string label = fmt::format("allocate {}/{} {}", used_bytes, bytes, what);
  exchange.label = label;
  wait(start(exchange, 0));
  std::uint64_t held_by_any = 0;
  for (const Verdict& verdict : verdicts) {
    if (verdict.refusal[0] != 0) throw BadInput(verdict.refusal.data());
    held_by_any |= verdict.held;
  }

  auto arenas = std::make_shared<std::vector<Arena>>(static_cast<std::size_t>(members_.size));
  const auto own = static_cast<std::size_t>(members_.rank);
  std::string failure;
  try {
    (*arenas)[own] = Arena::create(job_.system(), what, bytes);
    touch_pages((*arenas)[own].data(), used_bytes);
  } catch (const std::exception& e) {
    if (members_.size == 1) throw;
    failure = e.what();  // the others learn of it in the exchange
  }
  if (members_.size > 1) {
    Parcel parcel;
    parcel.bytes = failure;
    if (failure.empty()) parcel.descriptors.push_back((*arenas)[own].descriptor());
    std::vector<Parcel> parcels;
    try {
      parcels = gather(job_, fmt::format("memory {} of {}", ++allocations_, tag_), group_.ranks,
                       std::move(parcel));
    } catch (...) {
      fail_with_current_exception();
    }
    for (std::size_t member = 0; member < parcels.size(); ++member) {
      Parcel& given = parcels[member];
      if (!given.bytes.empty()) {
        throw BadInput(fmt::format("rank {} could not allocate {}: {}", group_.ranks[member], what,
                                   given.bytes));
      }
      if (member == own) continue;
      (*arenas)[member] = Arena::open(job_.system(), std::move(given.descriptors.front()), bytes);
    }
  }
  std::vector<std::byte*> blocks;
  for (Arena& arena : *arenas) {
    arena.close_descriptor();
    blocks.push_back(arena.data());
  }
  regions_.add(RegionTable::free_number(held_by_any), blocks, bytes, arenas);
  return {members_.rank, bytes, std::move(blocks), std::move(arenas)};
}

}  // namespace tutti
