#pragma once

// What the golden runs with a Trainer are made of, and what both kinds of runs need.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "golden/golden_model.h"
#include "golden/golden_runs.h"
#include "tutti/tutti.h"

namespace tutti::test::golden {

struct TrainerSetup {
  ModelKind model = {};
  Optimizer optimizer = Sgd{};
  TrainerOptions options = {};
  std::int64_t overflows_in_step = 0;  ///< 0: in none
  bool says_more = false;              ///< all kinds of metrics, shard states, an evaluation
  bool keeps_values = false;           ///< of the program's own, of each kind
};

std::vector<GoldenRun> trainer_runs();
std::vector<GoldenRun> parallel_runs();

/// All workers have the same text.
inline void expect_same_everywhere(const Job& job, const std::string& text) {
  const Group group(job, "golden");
  const auto mine = short_digest(text.data(), text.size());
  auto first = mine;
  group.broadcast({first.data(), static_cast<std::int64_t>(first.size()), DType::uint8}, 0);
  EXPECT_EQ(first, mine) << "rank " << job.rank() << " says\n" << text;
}

}  // namespace tutti::test::golden
