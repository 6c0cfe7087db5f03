#pragma once

// The buckets of a step: which of them are complete on this worker and on all, and their folds,
// which begin while backward still runs. Where workers are on several hosts, hosts add buckets up
// meanwhile.
//
// Threads: that of the exchange; sum_ready() is called by one of HostExchange, too, which pauses
// before the exchange's own goes on. Failure: that of the protocol.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/bucket_schedule.h"
#include "sync/step/exchange_options.h"
#include "sync/step/host_exchange.h"
#include "sync/step/step_protocol.h"

namespace tutti {

/// Called with parameters whose sums, or updated values, lie where this worker reads them, once in
/// a step for each.
using SumsLeave = std::function<void(std::span<const std::uint32_t> parameters)>;

class BucketFolds {
 public:
  /// Keeps references.
  BucketFolds(StepProtocol& protocol, NodeStore& nodes, const ExchangeOptions& options);
  /// After the hosts' part was made, which needs this one. Keeps a reference.
  void use(HostExchange& hosts);

  /// From now on sums of a step of one backward, on one host, leave while others are still written:
  /// `leave` is called by whoever writes or waits. What has not left is there after the step.
  void let_sums_leave(SumsLeave leave) { leave_ = std::move(leave); }
  /// Whether somebody takes what leaves.
  bool lets_leave() const { return leave_ != nullptr; }
  /// Calls `update` for each bucket, in which it updates this worker's elements of the bucket's
  /// parameters. They leave once all workers of this host have done so, while others are updated.
  void update_each(const std::function<void(std::size_t bucket)>& update);
  std::size_t bucket_of(std::size_t parameter) const { return schedule_->bucket_of(parameter); }
  /// See StepExchange.
  bool holds_values() const { return !is_alone_ || !leave_; }

  /// `is_alone`: the open step is one backward's of a group of one.
  void open(bool is_alone);
  /// Hash of the bucket schedule in use.
  std::uint64_t schedule_hash() const { return schedule_->hash(); }
  int buckets() const { return static_cast<int>(schedule_->size()); }
  /// The first parameter of the bucket that is to be folded next; 0 without buckets.
  std::uint32_t next_parameter() const;
  /// Whether a worker's gradients may have left while its backward ran.
  bool leave_early() const;

  /// The parameter was written, for the last time in this leaf where `last` is set.
  void note_write(std::size_t parameter, bool last);
  /// This worker has nothing: all buckets are complete.
  void publish_all();
  /// Writes rank 0's order of first writes on its board, until one is agreed.
  void publish_order();
  /// Folds this rank's slices of buckets that all workers have completed while their backward runs.
  void fold_ready();
  /// The same where hosts add up first: what has come is folded in complete().
  void sum_ready();
  /// All have published.
  void finish();
  /// Folds what is left of this worker's slices.
  void fold_slices();
  /// Buckets follow the order that rank 0 saw in the first step in which it wrote a gradient.
  void adopt_order();

 private:
  std::unique_ptr<BucketSchedule> schedule_of(std::span<const std::uint32_t> order) const;
  void publish_bucket(std::size_t bucket);
  bool completes_buckets() const;
  bool is_ready(std::size_t bucket) const;
  void send_folded();
  void fold_bucket(std::size_t bucket);
  void note_folded(std::size_t bucket);
  void collect_nodes();
  std::string mode_texts() const;

  StepProtocol& protocol_;
  NodeStore& nodes_;
  const ExchangeOptions& options_;
  HostExchange* hosts_ = nullptr;
  SumsLeave leave_;  ///< null: sums stay
  SliceFold slices_;
  std::unique_ptr<BucketSchedule> schedule_;
  bool order_agreed_ = false;
  bool is_alone_ = false;
  std::vector<std::uint32_t> fired_;    ///< first writes of this step, in order
  std::vector<std::uint32_t> unfired_;  ///< per bucket: parameters that have not fired yet
  std::size_t next_bucket_ = 0;         ///< first bucket whose slice is not folded yet
  std::size_t next_left_ = 0;           ///< first bucket whose sums have not left
  std::size_t next_summed_ = 0;         ///< first bucket that hosts have not begun to add up
  bool collected_ = false;              ///< nodes_ has those of all workers
};

}  // namespace tutti
