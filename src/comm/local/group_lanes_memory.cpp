// Shared memory of a local group: whether it fits is decided by all members before any of it is
// made.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/group_lanes.h"
#include "job/gather.h"
#include "memory/memory_need.h"

namespace tutti {
namespace {

/// What one member answers to a request for memory.
struct MemoryAnswer {
  std::uint64_t held = 0;           ///< regions that this member still has mapped
  std::array<char, 504> refusal{};  ///< empty: it fits
};
static_assert(std::is_trivially_copyable_v<MemoryAnswer>);

}  // namespace

/// Throws the first refusal of any member, on all. Returns which regions are held by some member.
std::uint64_t GroupLanes::agree(const std::string& refusal, const std::string& label) {
  std::vector<MemoryAnswer> answers(static_cast<std::size_t>(members_.members.size));
  MemoryAnswer mine;
  std::vector<std::shared_ptr<void>> pins;
  mine.held = members_.regions.hold(pins);
  pins.clear();
  std::memcpy(mine.refusal.data(), refusal.data(),
              std::min(refusal.size(), mine.refusal.size() - 1));
  Operation exchange;
  exchange.kind = OperationKind::all_gather;
  exchange.in = {&mine, sizeof(MemoryAnswer), DType::uint8};
  exchange.out = {answers.data(), static_cast<std::int64_t>(answers.size() * sizeof(MemoryAnswer)),
                  DType::uint8};
  exchange.label = label;
  wait(start(exchange));
  std::uint64_t held_by_any = 0;
  for (const MemoryAnswer& answer : answers) {
    if (answer.refusal[0] != 0) throw OutOfMemory(answer.refusal.data());
    held_by_any |= answer.held;
  }
  return held_by_any;
}

/// One of each member, or the first member's only. What this member cannot make, receive or map is
/// left in `failure`, as what another could not make: all have to hear of it.
std::vector<Arena> GroupLanes::exchange_arenas(const MemoryRequest& request, std::string& failure) {
  std::vector<Arena> arenas(request.common ? 1 : static_cast<std::size_t>(members_.members.size));
  const auto own = static_cast<std::size_t>(members_.members.rank);
  const bool gives = own < arenas.size();
  const auto of = [&](std::size_t member, const char* what, const char* why) {
    return fmt::format("rank {} could not {} {}: {}", members_.group.ranks[member], what,
                       request.what, why);
  };
  Parcel parcel;
  try {
    if (gives) arenas[own] = Arena::create(members_.job.system(), request.what, request.bytes);
    if (gives && !request.common) touch_pages(arenas[own].data(), request.needed);
    if (gives && members_.members.size > 1) parcel.descriptors.push_back(arenas[own].descriptor());
  } catch (const std::exception& e) {
    failure = parcel.bytes = of(own, "allocate", e.what());
  }
  if (members_.members.size == 1) return arenas;
  try {
    auto parcels =
        gather(members_.job, fmt::format("memory {} of {}", ++allocations_, members_.tag),
               members_.group.ranks, std::move(parcel));
    for (std::size_t member = 0; member < arenas.size(); ++member) {
      Parcel& given = parcels[member];
      if (!failure.empty()) break;
      failure = given.bytes;
      if (member == own || !failure.empty()) continue;
      try {
        arenas[member] =
            Arena::open(members_.job.system(), std::move(given.descriptors.front()), request.bytes);
      } catch (const std::exception& e) {
        failure = of(own, "map", e.what());
      }
    }
  } catch (const PeerLost&) {
    end_with_current_exception();
    throw;
  } catch (const Timeout&) {
    end_with_current_exception();
    throw;
  } catch (const Error& e) {
    failure = of(own, "receive", e.what());
  }
  return arenas;
}

/// One arena of this host for the blocks of all members. What this member cannot make, receive or
/// map is left in `failure`.
GroupLanes::CommonArena GroupLanes::exchange_common_arena(const MemoryRequest& request,
                                                          std::string& failure) {
  const std::size_t blocks = request.common ? 1 : static_cast<std::size_t>(members_.members.size);
  const std::size_t bytes = round_up(request.bytes, kPageBytes) * blocks;
  const std::string name = fmt::format("memory {} of {}", ++allocations_, members_.tag);
  const int maker = members_.first_here();
  const auto of = [&](const char* what, const char* why) {
    return fmt::format("rank {} could not {} {}: {}",
                       members_.group.ranks[static_cast<std::size_t>(members_.members.rank)], what,
                       request.what, why);
  };
  CommonArena made;
  Arena& arena = made.arena;
  Parcel parcel;
  try {
    if (members_.members.rank == maker) {
      arena = Arena::create(members_.job.system(), request.what, bytes);
      parcel.descriptors.push_back(arena.descriptor());
      made.held = members_.hold_block(name, arena, true);
    }
  } catch (const std::exception& e) {
    failure = parcel.bytes = of("allocate", e.what());
  }
  try {
    auto parcels = gather(members_.job, name, members_.group.ranks, std::move(parcel));
    for (const Parcel& given : parcels) {
      if (failure.empty()) failure = given.bytes;
    }
    if (!failure.empty() || members_.members.rank == maker) return made;
    try {
      auto& files = parcels[static_cast<std::size_t>(maker)].descriptors;
      TUTTI_CHECK(files.size() == 1, "no memory came with {}", name);
      arena = Arena::open(members_.job.system(), std::move(files.front()), bytes);
      made.held = members_.hold_block(name, arena, false);
    } catch (const std::exception& e) {
      failure = of("map", e.what());
    }
  } catch (const PeerLost&) {
    end_with_current_exception();
    throw;
  } catch (const Timeout&) {
    end_with_current_exception();
    throw;
  } catch (const Error& e) {
    failure = of("receive", e.what());
  }
  return made;
}

MemoryBlocks GroupLanes::allocate(const MemoryRequest& request) {
  const std::string label = fmt::format("allocate {}{}/{} {}", request.common ? "for all " : "",
                                        request.needed, request.bytes, request.what);
  agree(refuse_memory(members_.job.system(),
                      {.bytes_per_worker = request.needed,
                       .workers = request.common ? members_.members.size : members_.members_here(),
                       .what = request.what}),
        label);
  std::string failure;
  auto arenas = std::make_shared<std::vector<Arena>>();
  std::shared_ptr<void> held;
  if (members_.spans_hosts) {
    auto made = exchange_common_arena(request, failure);
    arenas->push_back(std::move(made.arena));
    held = std::move(made.held);
  } else {
    *arenas = exchange_arenas(request, failure);
  }
  const auto held_by_any = agree(failure, label + ", mapped");
  std::vector<std::byte*> blocks;
  for (Arena& arena : *arenas) {
    arena.close_descriptor();
    blocks.push_back(arena.data());
  }
  if (members_.spans_hosts) {
    const std::size_t stride = request.common ? 0 : round_up(request.bytes, kPageBytes);
    for (int member = 1; member < members_.members.size; ++member)
      blocks.push_back(blocks.back() + stride);
    if (!request.common)
      touch_pages(blocks[static_cast<std::size_t>(members_.members.rank)], request.needed);
    // The block is known to other hosts for as long as its memory is here.
    using Both = std::pair<std::shared_ptr<std::vector<Arena>>, std::shared_ptr<void>>;
    return {std::move(blocks), std::make_shared<Both>(std::move(arenas), std::move(held))};
  }
  blocks.resize(static_cast<std::size_t>(members_.members.size), blocks.front());
  members_.regions.add(RegionTable::free_number(held_by_any), blocks, request.bytes, arenas);
  return {std::move(blocks), std::move(arenas)};
}

}  // namespace tutti
