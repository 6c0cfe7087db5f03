#pragma once

// Sets of job ranks, and how they read in texts.
//
// Threads: values. Failure: a rank outside 0 … kMaxWorkers-1 is a broken invariant.

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "tutti/limits.h"

namespace tutti {

class RankSet {
 public:
  using Words = std::array<std::uint64_t, kMaxWorkers / 64>;

  RankSet() = default;
  RankSet(std::initializer_list<int> ranks) : RankSet(of({ranks.begin(), ranks.size()})) {}
  explicit RankSet(const Words& words) : words_(words) {}
  static RankSet of(std::span<const int> ranks);
  /// Ranks 0 … size-1.
  static RankSet below(int size);

  void insert(int rank) { words_[word_of(rank)] |= bit_of(rank); }
  bool contains(int rank) const { return (words_[word_of(rank)] & bit_of(rank)) != 0; }
  bool empty() const { return *this == RankSet(); }
  int size() const;
  /// The lowest rank of a set that is not empty.
  int first() const;
  /// Ascending.
  std::vector<int> ranks() const;
  const Words& words() const { return words_; }

  RankSet& operator|=(const RankSet& other);
  RankSet& operator&=(const RankSet& other);
  RankSet& operator-=(const RankSet& other);
  friend RankSet operator|(RankSet a, const RankSet& b) { return a |= b; }
  friend RankSet operator&(RankSet a, const RankSet& b) { return a &= b; }
  friend RankSet operator-(RankSet a, const RankSet& b) { return a -= b; }
  friend bool operator==(const RankSet&, const RankSet&) = default;
  /// Some order, for maps.
  friend auto operator<=>(const RankSet&, const RankSet&) = default;

 private:
  static std::size_t word_of(int rank);
  static std::uint64_t bit_of(int rank) { return std::uint64_t{1} << (rank % 64); }

  Words words_{};
};

/// The ranks as a list: "0 1 3". In a set of more than 16, neighbours become a range: "0-31 40".
std::string rank_list(const RankSet& set);
/// Text of a set: "rank 2", "ranks 0 1 3", or "nobody" when empty.
std::string ranks_text(const RankSet& set);
/// ranks_text and the verb that goes with it: "rank 2 has", "ranks 0 1 have".
std::string ranks_text(const RankSet& set, const char* one, const char* many);
/// "12 s", "1.5 s", "0.02 s".
std::string seconds_text(Clock::duration time);

}  // namespace tutti
