#pragma once

// Adds up what the buckets of parameters cost, step by step.
//
// Threads: one.

#include <string>
#include <vector>

#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/step/node_store.h"
#include "tutti/traffic.h"

namespace tutti {

/// Of the same steps: buckets of one report, then those of the other.
TrafficReport merged(TrafficReport one, const TrafficReport& other);

class TrafficCount {
 public:
  TrafficCount(const Plan& plan, const Buckets& buckets);

  /// A step begins: `last_step` is all zeros. Then add to bucket(b) what it costs, then end().
  void begin();
  BucketTraffic& bucket(std::size_t b) { return report_.last_step[b]; }
  /// After so many exchanges.
  void end(int collectives = 1);
  const TrafficReport& report() const { return report_; }

 private:
  TrafficReport report_;
};

/// Of gradients as they are: every worker is a logical worker, and messages are dense.
class PlainTraffic {
 public:
  PlainTraffic(const Plan& plan, Buckets buckets, int workers);

  /// A step whose nodes are still there.
  void note(const NodeStore& nodes);
  /// It counts.
  void count() { count_.end(); }
  const TrafficReport& report() const { return count_.report(); }

 private:
  const Plan& plan_;
  Buckets buckets_;
  std::uint64_t workers_;
  TrafficCount count_;
};

}  // namespace tutti
