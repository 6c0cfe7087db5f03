#pragma once

// Sets of ranks and deadlines as tests of jobs write them.

#include <chrono>
#include <vector>

#include "base/deadline.h"
#include "job/wire/rank_set.h"

namespace tutti::test {

inline Deadline within(std::chrono::milliseconds time) {
  return Deadline::after(Clock::now(), time);
}

inline std::vector<int> all(int size) { return RankSet::below(size).ranks(); }

/// So many hosts of so many workers each.
inline std::vector<RankSet> even(int hosts, int each) {
  std::vector<RankSet> ranks;
  for (int host = 0; host < hosts; ++host) {
    ranks.push_back(RankSet::below((host + 1) * each) - RankSet::below(host * each));
  }
  return ranks;
}

}  // namespace tutti::test
