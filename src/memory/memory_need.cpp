#include "memory/memory_need.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace tutti {
namespace {

std::optional<MemoryBound> tightest_of(const std::vector<MemoryBound>& bounds) {
  const auto tightest = std::ranges::min_element(bounds, {}, &MemoryBound::available);
  if (tightest == bounds.end()) return {};
  return *tightest;
}

std::string refuse_own_memory(const System& system, const MemoryNeed& need) {
  const auto tightest = tightest_of(system.own_memory_bounds());
  if (!tightest || need.bytes_per_worker <= tightest->available) return {};
  return fmt::format("not enough memory: {} needs {} for one worker, but {} has {} left of {}",
                     need.what.empty() ? "this" : need.what, format_bytes(need.bytes_per_worker),
                     tightest->owner, format_bytes(tightest->available),
                     format_bytes(tightest->limit));
}

}  // namespace

std::uint64_t MemoryNeed::total() const noexcept {
  const auto n = static_cast<std::uint64_t>(std::max(workers, 0));
  if (n != 0 && bytes_per_worker > std::numeric_limits<std::uint64_t>::max() / n) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return bytes_per_worker * n;
}

std::string refuse_memory(const System& system, const MemoryNeed& need) {
  const std::uint64_t total = need.total();
  const auto tightest = tightest_of(system.memory_bounds());
  if (!tightest || total <= tightest->available) {
    return need.is_private ? refuse_own_memory(system, need) : std::string();
  }
  const std::string workers = need.workers == 1
                                  ? std::string("for one worker")
                                  : fmt::format("({} for each of {} workers)",
                                                format_bytes(need.bytes_per_worker), need.workers);
  return fmt::format("not enough memory: {} needs {} {}, but {} has {} left of {}",
                     need.what.empty() ? "this" : need.what, format_bytes(total), workers,
                     tightest->owner, format_bytes(tightest->available),
                     format_bytes(tightest->limit));
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return value == static_cast<double>(static_cast<std::uint64_t>(value))
             ? fmt::format("{} {}", static_cast<std::uint64_t>(value), kUnits[unit])
             : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace tutti
