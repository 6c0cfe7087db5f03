#include "job/rank_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti {

std::uint64_t set_of(const std::vector<int>& ranks) {
  std::uint64_t set = 0;
  for (const int rank : ranks) set |= rank_bit(rank);
  return set;
}

std::vector<int> ranks_of(std::uint64_t set) {
  std::vector<int> ranks;
  for (; set != 0; set &= set - 1) ranks.push_back(first_rank(set));
  return ranks;
}

std::string ranks_text(std::uint64_t set) {
  if (set == 0) return "nobody";
  return fmt::format("{} {}", std::has_single_bit(set) ? "rank" : "ranks",
                     fmt::join(ranks_of(set), " "));
}

std::string ranks_text(std::uint64_t set, const char* one, const char* many) {
  return fmt::format("{} {}", ranks_text(set), std::popcount(set) > 1 ? many : one);
}

std::string seconds_text(Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds >= 9.95) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.{}f} s", seconds, seconds >= 0.95 ? 1 : 2);
}

}  // namespace tutti
