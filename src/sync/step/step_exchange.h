#pragma once

// The step protocol of data-parallel gradients. A step is a fixed list of leaves; every worker
// folds its own (LeafFolder), publishes what is left, folds its slices of all nodes (SliceFold),
// and finds the reduced gradients in its own arena.
//
//   open → leaves … → arrive: publish │ wait for all → complete: fold_slices() │ wait for all
//
// In a step of one backward (one leaf per worker) buckets are published and folded while backward
// still runs. Where workers are on several hosts, so they are in the last leaf of a worker that has
// told how many it has: hosts then add them up meanwhile, by a thread that is not the program's,
// because a layer's backward may take long and call nobody.
//
// Its parts: StepProtocol waits and fails, HostExchange sends to other hosts, BucketFolds
// publishes and folds, LeafIntake takes leaves, ModelAgreement compares models.
//
// Threads: one, and one of its own where hosts add up. Failure: as StepProtocol says.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/group_state.h"
#include "sync/nodes/node_store.h"
#include "sync/nodes/step_memory.h"
#include "sync/plan/plan.h"
#include "sync/step/bucket_folds.h"
#include "sync/step/exchange_options.h"
#include "sync/step/host_exchange.h"
#include "sync/step/leaf_intake.h"
#include "sync/step/model_agreement.h"
#include "sync/step/step_protocol.h"
#include "tutti/group.h"
#include "tutti/step_report.h"

namespace tutti {

class StepExchange {
 public:
  /// Compares plans and allocates. Collective.
  StepExchange(Group group, Plan plan, const ExchangeOptions& options);
  /// Tells the others that this worker takes part in no further step.
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  const Plan& plan() const { return nodes_.plan(); }
  const Group& group() const { return group_; }
  const ExchangeOptions& options() const { return options_; }
  /// What takes part in steps adds its control memory here.
  StepMemory& memory() { return memory_; }
  /// This worker's nodes while a step is open; those of all between arrive() and complete().
  NodeStore& nodes() { return nodes_; }
  const NodeStore& nodes() const { return nodes_; }
  /// The rank in the group of the one worker that updates the parameter; −1: all share it.
  int owner_of(std::size_t parameter) const {
    return options_.owners.empty() ? -1 : options_.owners[parameter];
  }
  /// Whether this worker updates the parameter, alone or as all do.
  bool is_updated_here(std::size_t parameter) const {
    const auto owner = owner_of(parameter);
    return owner < 0 || owner == group_.rank();
  }
  StepProtocol& protocol() { return protocol_; }
  const StepProtocol& protocol() const { return protocol_; }
  HostExchange& hosts() { return hosts_; }
  const HostExchange& hosts() const { return hosts_; }
  LeafIntake& leaves() { return leaves_; }
  ModelAgreement& model() { return model_; }

  /// From now on sums leave as they are complete: see BucketFolds.
  void let_sums_leave(SumsLeave leave) { buckets_.let_sums_leave(std::move(leave)); }
  /// In a step that updates tiles the same holds of their values: see BucketFolds.
  BucketFolds& buckets() { return buckets_; }
  /// Whether the open step holds values of gradients. Where sums leave, those of a step of one
  /// backward in a group of one are their own sums: they stay where they are, and are noted here.
  bool holds_values() const { return buckets_.holds_values(); }

  /// Opens a step of one leaf, at once begun, for a single backward. In a group of one the mean is
  /// that leaf: it is neither multiplied by its weight nor divided.
  void open_one_backward(double weight);
  /// Opens a step of any number of leaves; given the number, nodes are folded as leaves come.
  void open_scope(std::optional<std::int64_t> leaves);
  /// Opens a step of which this worker's leaves are the given range, ended by arrive().
  void open_shards(std::int64_t first, std::int64_t leaves);
  /// Opens a step without a gradient. `weight` still counts in the divisor.
  void open_without_gradient(double weight, bool drained);

  struct Outcome {
    std::vector<std::uint8_t> touched;  ///< per parameter: some worker wrote it
    int drained = 0;                    ///< workers that have no more data
    int buffer_source = 0;              ///< rank in the group whose buffers count
    StepReport report;
  };
  // The one sync of a step is in two parts, by all workers alike; sources of gradients
  // (gradient_source.h) are asked between them, and inside the second.
  /// Publishes what this worker has, waits until all have done so, and compares digests where they
  /// are due. In a step of one backward, buckets are folded while it waits.
  void arrive(const ModelMemory& model);
  /// Inside complete(), unless gradients are coded: folds what is left of this worker's slices of
  /// the partitioned parameters. The reduced gradients then lie at nodes().result(p).
  void fold_slices() { buckets_.fold_slices(); }
  /// Runs `work`, this worker's part; returns when all workers have finished theirs.
  const Outcome& complete(const std::function<void()>& work);

 private:
  NodeStore::Options store_options();
  StepProtocol::Hooks hooks();
  void open(StepMode mode, std::int64_t declared, double weight, bool drained,
            bool is_alone = false);
  void publish(const ModelMemory& model);
  void fill_outcome();

  Group group_;
  ExchangeOptions options_;
  StepMemory memory_;
  NodeStore nodes_;
  StepProtocol protocol_;
  BucketFolds buckets_;
  HostExchange hosts_;
  LeafIntake leaves_;
  ModelAgreement model_;
  Outcome outcome_;
};

}  // namespace tutti
