#pragma once

// Runs a case as processes, twice: one worker that never stops, and the case's workers and stops.

#include <string>

#include "exactness/random_case.h"
#include "exactness/random_run.h"

namespace tutti::test::exact {

struct Verdict {
  /// What differs first, or went wrong; empty: nothing did.
  std::string trouble;
  /// Refused, alike, and docs/combinations.md says so.
  bool is_refused = false;
  int workers = 0;  ///< processes that were started
};

/// To be called while this process has one thread.
class RandomRuns {
 public:
  explicit RandomRuns(const Refusals& refusals);
  ~RandomRuns();
  RandomRuns(const RandomRuns&) = delete;
  RandomRuns& operator=(const RandomRuns&) = delete;

  Verdict try_out(const Choices& one);

 private:
  struct Ended {
    Transcript lines;
    std::string trouble;
  };
  Ended run(const Choices& one, const Stretch& stretch, const std::string& folder);
  std::string judge(const Choices& one, Verdict& verdict);

  const Refusals& refusals_;
  char* shared_;  ///< what the workers said, one part for each rank
};

}  // namespace tutti::test::exact
