#pragma once

// Sets of job ranks as bits, and how they read in texts.

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace tutti {

inline std::uint64_t rank_bit(int rank) { return std::uint64_t{1} << rank; }
inline bool has_rank(std::uint64_t set, int rank) { return (set & rank_bit(rank)) != 0; }
/// Lowest rank of a set that is not empty.
inline int first_rank(std::uint64_t set) { return std::countr_zero(set); }
/// Ranks 0 … size-1.
inline std::uint64_t ranks_below(int size) {
  return size >= 64 ? ~std::uint64_t{0} : rank_bit(size) - 1;
}
std::uint64_t set_of(const std::vector<int>& ranks);
std::vector<int> ranks_of(std::uint64_t set);

/// Text of a set: "rank 2", "ranks 0 1 3", or "nobody" when empty.
std::string ranks_text(std::uint64_t set);
/// ranks_text and the verb that goes with it: "rank 2 has", "ranks 0 1 have".
std::string ranks_text(std::uint64_t set, const char* one, const char* many);
/// "12 s", "1.5 s", "0.02 s".
std::string seconds_text(Clock::duration time);

}  // namespace tutti
