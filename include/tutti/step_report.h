#pragma once

// What one step cost. Plain value.

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti {

struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  /// Gradient exchanges: 1 per step; with an averaging policy, averaging rounds.
  int collectives = 0;
  /// Parts in which it left: buckets, each as soon as it was complete, or (1) all at once.
  int buckets = 0;
  /// Bytes that one sender sent, once and in one direction: a worker, or with a codec or an
  /// averaging policy a logical worker. The sum of
  /// - dense gradients: those of the parameters that any worker touched, padded, but for
  ///   per-replica parameters;
  /// - row-sparse gradients: those of the worker that sent most;
  /// - with a codec: instead of dense gradients the messages of the logical worker that sent most,
  ///   and the gradients that only their owners get;
  /// - with an averaging policy: instead of gradients the copies that were averaged.
  ///
  /// TrafficReport has the bytes of all senders, both ways.
  std::size_t max_sent_bytes = 0;
  /// The same for the gradients of all parameters, dense and without a codec.
  std::size_t dense_bytes = 0;
  int waits = 0;            ///< times this worker had to wait for others
  double wait_seconds = 0;  ///< … and for how long in all
  /// From when all workers had published their gradients until those of other hosts had been added:
  /// communication that no backward hides. 0 on one host.
  double exposed_seconds = 0;
  int parameters_touched = 0;
  int parameters_skipped = 0;
  std::int64_t leaves = 0;  ///< micro-batches over all workers
  double weight = 0;        ///< Σ of their weights
  int nodes_held = 0;       ///< folded nodes that this worker published
  /// Gradients that stayed where this backward, or the copy from its device, made them.
  int zero_copy_gradients = 0;
  /// What this worker gave other workers' stages of a pipeline: activations, and their gradients.
  std::size_t stage_bytes = 0;
  /// The part of stage_bytes that is gradients of parameters which an earlier stage reads too.
  std::size_t tied_bytes = 0;
  /// What this worker copied between the host and its model's device, both ways: gradients, sums,
  /// buffers, and parameters where they are compared.
  std::size_t device_bytes = 0;
  /// For how long its program, or backward, waited for such copies.
  double device_wait_seconds = 0;
  int last_worker = 0;  ///< job rank of the worker that was ready last

  /// One line: "step 17: 1 exchange of 33.60 of 33.60 MB, 0 parameters skipped, …".
  std::string text() const;
};

}  // namespace tutti
