#pragma once

// The golden runs: small trainings that, together, go through every kind of gradient, update and
// averaging. docs/numerics.md promises their bits; nothing else than Tutti decides them.
//
// Threads: one; workers are forked. Failure: a failed expectation of GoogleTest.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "golden/golden_text.h"

namespace tutti::test::golden {

struct GoldenRun {
  std::string name;
  /// Each worker is a leaf or a logical worker of its own, so the number of workers decides bits.
  bool is_per_workers = false;
  std::function<Lines(int workers)> train;
};

const std::vector<GoldenRun>& golden_runs();

/// A run with a Trainer whose checkpoints are among the golden files.
struct KeptRun {
  std::string name;
  /// Trains the first steps and saves.
  std::function<void(int workers, const std::string& folder)> save;
  /// Loads and trains to the end: the state that was loaded, those after it, and what a save right
  /// after the load writes. A load that is refused gives one line "refused".
  std::function<Lines(int workers, const std::string& folder)> resume;
};

const std::vector<KeptRun>& kept_runs();

}  // namespace tutti::test::golden
