#pragma once

// What was sent of each bucket of parameters: as much as a codec leaves, beside what it would have
// been without one.
//
// Plain values.

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// What one bucket of parameters sent, in one step or several. Bytes are those of all logical
/// workers (of all workers, where there is no codec), both ways: the messages that they send, and
/// the sum that each gets back. Where owners send updated values, it is one message, which all get.
struct BucketTraffic {
  std::string parameters;           ///< their names, or the first and the last one's
  std::int64_t elements = 0;        ///< of all parameters of the bucket
  std::int64_t messages = 0;        ///< that were sent
  std::int64_t dense_messages = 0;  ///< of these, as arrays instead of lists
  std::int64_t values = 0;          ///< that the messages contain
  std::int64_t touched = 0;         ///< elements of the gradients that became messages
  std::uint64_t bytes = 0;          ///< sent
  std::uint64_t bytes_dense = 0;    ///< what these gradients would have cost as they are
  double residual_norm = 0;         ///< ‖·‖₂ of what is kept now, over all logical workers

  /// values ÷ touched; 0 of nothing.
  double density() const {
    return touched == 0 ? 0 : static_cast<double>(values) / static_cast<double>(touched);
  }
};

struct TrafficReport {
  std::int64_t steps = 0;  ///< that were applied
  /// Gradient exchanges: 1 per step; with an averaging policy, averaging rounds.
  std::int64_t collectives = 0;
  std::vector<BucketTraffic> last_step;
  std::vector<BucketTraffic> all_steps;

  /// A table of all steps, one line per bucket and one of the sum; ends with a line end.
  std::string table() const;
};

}  // namespace tutti
