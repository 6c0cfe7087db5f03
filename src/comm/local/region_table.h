#pragma once

// The shared memory of a group, by number, so that members can tell each other where a span lies.
// A region is given up when its user lets go of it; members do so at different times, which is why
// every call names which regions its giver still has.
//
// Threads: one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/local/location.h"

namespace tutti {

inline constexpr int kMaxRegions = 64;

class RegionTable {
 public:
  /// Bits of the regions that are still mapped here; they stay so for as long as `pins` lives.
  std::uint64_t hold(std::vector<std::shared_ptr<void>>& pins) const;
  /// The lowest number that no member holds, or -1 when all are taken: such memory works,
  /// but is treated like private memory.
  static int free_number(std::uint64_t held_by_any);
  void add(int number, std::vector<std::byte*> blocks, std::size_t bytes,
           const std::shared_ptr<void>& owner);
  /// The location of a span of member `rank`, looked up in its own blocks.
  Location locate(int rank, const void* data, std::size_t bytes) const;
  /// The address here of what member `rank` gave. The region must be held.
  std::byte* address(int rank, const Location& location) const;

 private:
  struct Region {
    std::vector<std::byte*> blocks;
    std::size_t bytes = 0;
    std::weak_ptr<void> owner;
  };
  std::array<Region, kMaxRegions> regions_;
  std::uint64_t added_ = 0;  ///< bits of the numbers ever given
};

}  // namespace tutti
