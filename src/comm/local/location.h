#pragma once

// How a member tells others where a span of its lies.

#include <cstdint>

namespace tutti {

/// In the giver's block of a region that members have mapped, or in memory of its own.
struct Location {
  static constexpr std::uint32_t kPrivate = ~0U;
  std::uint32_t region = kPrivate;
  std::uint64_t offset = 0;
};

}  // namespace tutti
