#pragma once

// Adds up the traffic of each bucket, step by step.
//
// Threads: one.

#include <string>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "tutti/traffic.h"

namespace tutti {

/// Both reports are of the same steps: buckets of `one`, then those of `other`.
TrafficReport merged(TrafficReport one, const TrafficReport& other);

class TrafficCount {
 public:
  TrafficCount(const Plan& plan, const Buckets& buckets);

  /// Begins a step with all counts 0. Then add to bucket(b), then call end().
  void begin();
  BucketTraffic& bucket(std::size_t b) { return report_.last_step[b]; }
  /// Ends a step of `collectives` exchanges.
  void end(int collectives = 1);
  const TrafficReport& report() const { return report_; }

 private:
  TrafficReport report_;
};

/// The traffic of gradients without a codec: every worker is a logical worker, and messages are
/// dense.
class PlainTraffic {
 public:
  PlainTraffic(const Plan& plan, Buckets buckets, int workers);

  /// Notes a step, while its nodes are valid.
  void note(const NodeStore& nodes);
  /// The noted step counts.
  void count() { count_.end(); }
  const TrafficReport& report() const { return count_.report(); }

 private:
  const Plan& plan_;
  Buckets buckets_;
  std::uint64_t workers_;
  TrafficCount count_;
};

}  // namespace tutti
