#include "job/wire/rank_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace tutti {

namespace {

/// Larger sets are shown as ranges: texts, and tags of frames, stay short.
constexpr int kMostListed = 16;
/// Fewer neighbours are as short one by one.
constexpr std::size_t kShortestRange = 3;

}  // namespace

std::size_t RankSet::word_of(int rank) {
  TUTTI_CHECK(rank >= 0 && rank < kMaxWorkers, "rank {} in a set", rank);
  return static_cast<std::size_t>(rank) / 64;
}

RankSet RankSet::of(std::span<const int> ranks) {
  RankSet set;
  for (const int rank : ranks) set.insert(rank);
  return set;
}

RankSet RankSet::below(int size) {
  RankSet set;
  for (int rank = 0; rank < size; ++rank) set.insert(rank);
  return set;
}

int RankSet::size() const {
  int count = 0;
  for (const auto word : words_) count += std::popcount(word);
  return count;
}

int RankSet::first() const {
  for (std::size_t w = 0; w < words_.size(); ++w) {
    if (words_[w] != 0) return static_cast<int>(64 * w) + std::countr_zero(words_[w]);
  }
  TUTTI_CHECK(false, "the first of no ranks");
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> ranks;
  for (std::size_t w = 0; w < words_.size(); ++w) {
    for (auto word = words_[w]; word != 0; word &= word - 1) {
      ranks.push_back(static_cast<int>(64 * w) + std::countr_zero(word));
    }
  }
  return ranks;
}

RankSet& RankSet::operator|=(const RankSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  return *this;
}

RankSet& RankSet::operator&=(const RankSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
  return *this;
}

RankSet& RankSet::operator-=(const RankSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
  return *this;
}

std::string rank_list(const RankSet& set) {
  const auto ranks = set.ranks();
  if (set.size() <= kMostListed) return fmt::format("{}", fmt::join(ranks, " "));
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - begin >= kShortestRange) {
      parts.push_back(fmt::format("{}-{}", ranks[begin], ranks[end - 1]));
      continue;
    }
    for (auto k = begin; k < end; ++k) parts.push_back(fmt::to_string(ranks[k]));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

std::string ranks_text(const RankSet& set) {
  if (set.empty()) return "nobody";
  return fmt::format("{} {}", set.size() == 1 ? "rank" : "ranks", rank_list(set));
}

std::string ranks_text(const RankSet& set, const char* one, const char* many) {
  return fmt::format("{} {}", ranks_text(set), set.size() > 1 ? many : one);
}

std::string seconds_text(Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds >= 9.95) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.{}f} s", seconds, seconds >= 0.95 ? 1 : 2);
}

}  // namespace tutti
