#include "comm/local/region_table.h"

#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

template <class Visit>
void for_each_bit(std::uint64_t bits, Visit&& visit) {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<std::size_t>(std::countr_zero(bits)));
}

}  // namespace

std::uint64_t RegionTable::hold(std::vector<std::shared_ptr<void>>& pins) const {
  std::uint64_t bits = 0;
  for_each_bit(added_, [&](std::size_t i) {
    if (auto owner = regions_[i].owner.lock()) {
      bits |= std::uint64_t{1} << i;
      pins.push_back(std::move(owner));
    }
  });
  return bits;
}

int RegionTable::free_number(std::uint64_t held_by_any) {
  const int number = std::countr_one(held_by_any);
  return number < kMaxRegions ? number : -1;
}

void RegionTable::add(int number, std::vector<std::byte*> blocks, std::size_t bytes,
                      const std::shared_ptr<void>& owner) {
  if (number < 0) return;
  const auto i = static_cast<std::size_t>(number);
  TUTTI_CHECK(regions_[i].owner.expired(), "region {} is still held", number);
  regions_[i] = {std::move(blocks), bytes, owner};
  added_ |= std::uint64_t{1} << i;
}

Location RegionTable::locate(int rank, const void* data, std::size_t bytes) const {
  Location found;
  const auto* begin = static_cast<const std::byte*>(data);
  for_each_bit(added_, [&](std::size_t i) {
    const Region& region = regions_[i];
    const std::byte* block = region.blocks[static_cast<std::size_t>(rank)];
    const std::less_equal<const std::byte*> not_after;
    if (region.owner.expired() || !not_after(block, begin) ||
        !not_after(begin + bytes, block + region.bytes)) {
      return;
    }
    found = {static_cast<std::uint32_t>(i), static_cast<std::uint64_t>(begin - block)};
  });
  return found;
}

std::byte* RegionTable::address(int rank, const Location& location) const {
  const Region& region = regions_[location.region];
  return region.blocks[static_cast<std::size_t>(rank)] + location.offset;
}

}  // namespace tutti
