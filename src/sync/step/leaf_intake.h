#pragma once

// A worker's leaves of a step, from the first one's begin to the last write.
//
// Threads: that of the exchange. Failure: that of the protocol; OutOfMemory fails the step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "sync/nodes/node_store.h"
#include "sync/step/bucket_folds.h"
#include "sync/step/exchange_options.h"
#include "sync/step/first_look.h"
#include "sync/step/host_exchange.h"
#include "sync/step/step_protocol.h"

namespace tutti {

class LeafIntake {
 public:
  /// Keeps references.
  LeafIntake(StepProtocol& protocol, NodeStore& nodes, const ExchangeOptions& options,
             HostExchange& hosts, BucketFolds& buckets);

  FirstLook& first_look() { return first_look_; }
  /// Checks the memory for the nodes of `leaves` leaves, wherever their range begins, with `cuts`
  /// cuts inside it.
  void require_room(std::int64_t leaves, std::int64_t cuts);
  /// The same for leaves from `first` on.
  void require_room_from(std::int64_t first, std::int64_t leaves);
  void begin_leaf(double weight);
  /// See LeafFolder::write. In a step of one backward, `last` is what lets a bucket leave.
  void write(std::size_t parameter, const void* gradient, bool last, bool may_stay = false);
  /// There is a gradient, which is summed by others.
  void note(std::size_t parameter, bool last);
  /// The same where nodes are elsewhere (NodesElsewhere), which takes `gradient`. What lets a
  /// bucket leave is arrived(): that they have come to the arena, by whom leave() told to be
  /// complete.
  void fold(std::size_t parameter, const void* gradient, bool last, bool may_stay);
  void arrived(std::size_t parameter) { buckets_.note_write(parameter, true); }
  /// The same as the first for a row-sparse parameter.
  void write(std::size_t parameter, const RowEntries& entries, bool last);
  /// From now on nodes are folded there; `wait` returns when all that have left have come.
  void fold_in(NodesElsewhere* nodes, std::function<void()> wait = {}) {
    nodes_.leaves().fold_in(nodes);
    wait_ = std::move(wait);
  }
  /// See LeafFolder::lend; while a step is open.
  std::unique_ptr<SlotLoan> lend(std::size_t parameter) { return nodes_.leaves().lend(parameter); }
  bool finished(std::size_t parameter) const { return nodes_.leaves().finished(parameter); }
  /// See LeafFolder::magnitude.
  double magnitude(std::size_t parameter) const { return nodes_.leaves().magnitude(parameter); }
  void end_leaf() { nodes_.leaves().end_leaf(); }
  /// Index of the next leaf among those of all workers; waits for the workers before this one to
  /// say how many they have.
  std::int64_t next_leaf();
  /// Ends the last leaf. Throws InvalidArgument, and fails the step, where fewer came than told.
  void finish();
  /// Publishes the number of this worker's leaves, and the nodes that they became.
  void publish();

 private:
  void require_nodes(std::int64_t nodes, std::int64_t leaves);
  void find_start(bool wait);

  StepProtocol& protocol_;
  NodeStore& nodes_;
  const ExchangeOptions& options_;
  HostExchange& hosts_;
  BucketFolds& buckets_;
  FirstLook first_look_;
  std::function<void()> wait_;  ///< null where nodes are folded in the arena
  std::int64_t roomy_for_ = 1;  ///< leaves whose nodes were found to fit
};

}  // namespace tutti
