#pragma once

// How a member tells others where its span lies.

#include <cstdint>

namespace tutti {

/// The span lies in the giver's block of a region that members have mapped, or in memory of the
/// giver's own, of which it may have written a copy to its inline buffer.
struct Location {
  static constexpr std::uint32_t kPrivate = ~0U;
  static constexpr std::uint32_t kInlined = kPrivate - 1;
  bool in_region() const { return region < kInlined; }
  std::uint32_t region = kPrivate;
  std::uint64_t offset = 0;
};

}  // namespace tutti
