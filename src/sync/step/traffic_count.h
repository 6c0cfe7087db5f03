#pragma once

// Adds up what the groups of parameters cost, step by step.
//
// Threads: one.

#include <string>
#include <vector>

#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/step/node_store.h"
#include "tutti/traffic.h"

namespace tutti {

/// Of the same steps: groups of one report, then those of the other.
TrafficReport merged(TrafficReport one, const TrafficReport& other);

class TrafficCount {
 public:
  TrafficCount(const Plan& plan, const ParameterGroups& groups);

  /// A step begins: `last_step` is all zeros. Then add to group(g) what it costs, then end().
  void begin();
  GroupTraffic& group(std::size_t g) { return report_.last_step[g]; }
  /// After so many exchanges.
  void end(int collectives = 1);
  const TrafficReport& report() const { return report_; }

 private:
  TrafficReport report_;
};

/// Of gradients as they are: every worker is a logical worker, and messages are dense.
class PlainTraffic {
 public:
  PlainTraffic(const Plan& plan, ParameterGroups groups, int workers);

  /// A step whose nodes are still there.
  void note(const NodeStore& nodes);
  /// It counts.
  void count() { count_.end(); }
  const TrafficReport& report() const { return count_.report(); }

 private:
  const Plan& plan_;
  ParameterGroups groups_;
  std::uint64_t workers_;
  TrafficCount count_;
};

}  // namespace tutti
