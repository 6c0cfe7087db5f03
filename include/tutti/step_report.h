#pragma once

// What one step cost. Plain value.

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti {

struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  /// Gradient exchanges: 1 per step, 2 with a codec of two rounds; with an averaging policy,
  /// averaging rounds.
  int collectives = 0;
  /// Parts in which it left: buckets, each as soon as it was complete, or (1) all at once.
  int buckets = 0;
  /// Padded gradient bytes that were exchanged (touched parameters), of row-sparse ones those of
  /// the worker that sent most; of per-replica ones nothing; with an averaging policy those of the
  /// copies that became one, of one logical worker; with a codec the bytes of one logical worker's
  /// messages, the one that sent most, and gradients that only their owners get.
  std::size_t bytes = 0;
  std::size_t bytes_dense = 0;  ///< of all parameters' gradients, as they are
  int waits = 0;                ///< times this worker had to wait for others
  double wait_seconds = 0;      ///< … and for how long in all
  int parameters_touched = 0;
  int parameters_skipped = 0;
  std::int64_t leaves = 0;      ///< micro-batches over all workers
  double weight = 0;            ///< Σ of their weights
  int nodes_held = 0;           ///< folded nodes this worker handed in
  int zero_copy_gradients = 0;  ///< gradients that stayed where this backward made them
  int last_worker = 0;          ///< job rank of the worker that was ready last

  /// One line: "step 17: 1 exchange of 33.60 of 33.60 MB, 0 parameters skipped, …".
  std::string text() const;
};

}  // namespace tutti
