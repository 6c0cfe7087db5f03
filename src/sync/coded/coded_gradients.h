#pragma once

// What a codec does to a step. The folded gradient of each logical worker becomes messages, one per
// bucket of parameters; the sum of the decoded messages is the step's gradient:
//
//   x = fold of the logical worker's leaves ÷ their weight   (clamped)   + residual
//   message = encode(x)      residual = x − decode(message)
//   gradient = Σ decode(message) · (the logical worker's share of the weight), along the tree
//
// Momentum, where it is corrected, comes before the residual (tutti::MomentumCorrection).
//
// A parameter that a logical worker did not touch sends nothing and keeps its residual. Row-sparse
// parameters are left alone: their gradients are lists already (row_gradients.h). Any worker that
// carries leaves of a logical worker may encode for it; no bit depends on which one does.
//
// On several hosts it is one of the host that has the logical worker's first leaf. Messages go to
// all hosts (host_messages.h), each of which adds them up for itself. What is kept for the next
// step stays on the host that encodes, until bring_kept().
//
// Threads: one; that of the exchange sends what is made. Failure: that of the step protocol; a
// refusal is a text, the same on all workers.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sync/coded/bucket_encoder.h"
#include "sync/coded/host_messages.h"
#include "sync/coded/message_store.h"
#include "sync/coded/message_sum.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/assignment.h"
#include "sync/step/array_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/traffic_count.h"
#include "tutti/codec.h"

namespace tutti {

struct CodingOptions {
  Compression compression;
  Divisor divisor = Divisor::weights;
  /// The logical workers, as nodes of the tree over `shards` leaves; empty: every worker is one.
  std::vector<ShardRange> logical_workers = {};
  std::int64_t shards = 0;
  std::string name = {};  ///< in errors
  /// Gives a parameter's values at the begin of a step, where momentum correction decays weights.
  std::function<ParameterValues(std::uint32_t parameter)> values = {};
};

class CodedGradients final : public ArraySource {
 public:
  /// Keeps a reference. Collective. Unsupported for parameters whose gradients are not folded in
  /// float32.
  CodedGradients(StepExchange& exchange, CodingOptions options);
  ~CodedGradients() override;
  CodedGradients(const CodedGradients&) = delete;
  CodedGradients& operator=(const CodedGradients&) = delete;

  /// This worker's open leaf has written that parameter for the last time. Where this completes a
  /// bucket of a logical worker all of whose leaves are this worker's, its message is made at once.
  void wrote(std::uint32_t parameter, double loss_scale) override;
  void begin(double loss_scale) override;
  /// Returns when all messages of the step are written.
  Refusal prepare() override;
  /// Messages contain finite values alone, whose mean is finite.
  bool must_be_kept(bool) const override { return false; }
  /// Messages may be overwritten as soon as the step is complete.
  void note() override;
  /// The next step begins with the new residuals. The report gets the bytes of the logical worker
  /// that sent most, and those of gradients that only their owners get.
  void commit(StepReport& report) override;
  /// Reads all residuals for their norms.
  TrafficReport traffic() const override;

  /// Between steps: what is kept of all logical workers is on all hosts. Collective.
  void bring_kept();
  /// The same where it is right on the host of rank 0 alone.
  void spread_kept();
  /// Whether bring_kept() has anything to do. Alike on all workers.
  bool has_kept_elsewhere() const;

  const MessageStore& board() const { return board_; }
  /// Messages of the open step that this worker made before it was published.
  std::size_t made_early() const { return early_.size(); }
  /// Private memory of this worker.
  std::size_t bytes_per_worker() const { return encoder_.bytes(); }
  /// Shared memory per logical worker.
  std::size_t bytes_per_logical_worker() const { return board_.bytes_per_logical_worker(); }

 private:
  /// One logical worker in this step.
  struct Carried {
    NodeRange nodes;
    double weight = 0;
    std::vector<std::uint8_t> touched;        ///< per parameter
    std::vector<double> share;                ///< per parameter: of the weight
    std::vector<std::int64_t> at_in_message;  ///< per parameter: its first value
    std::vector<std::size_t> part_at;         ///< per parameter: bytes before it, if in tiles
    std::vector<std::int64_t> elements;       ///< per bucket: of its touched parameters
  };
  /// Leaves of the tree over the logical workers, in which any leaf of one stands for it.
  std::int64_t leaves() const;
  Block place_of(std::size_t logical) const;
  std::int64_t count_of(std::uint32_t parameter) const {
    return exchange_.plan().parameters()[parameter].spec.count;
  }
  void collect_nodes();
  void find_shares();
  void fold_to(const ElementRange& range, void* to, bool counts) override;
  void encode_own();
  bool is_touched(std::uint32_t parameter) const;
  std::size_t sum_bytes_of(std::size_t bucket, std::int64_t values) const;
  SumTerm term_of(std::size_t logical, std::uint32_t parameter) const;
  std::vector<std::vector<std::size_t>> own_tasks() const;
  std::optional<std::size_t> closing() const;
  void encode_early(std::size_t logical, std::size_t bucket, double loss_scale);
  BucketEncoder::TileFold fold_of(std::size_t logical, std::uint32_t parameter);
  Refusal first_refusal() const;
  void made(const MessageTask& task);
  std::vector<std::size_t> messages_of_hosts() const;
  Refusal exchange_messages();
  /// Whether bring_kept() has anything to do, in any step.
  bool keeps_on_hosts() const { return spans_hosts_ && board_.has_residuals(); }
  void note_squares();
  void note_homes();
  double kept_squares(const MessageTask& task) const;

  StepExchange& exchange_;
  SliceFold slices_;
  bool spans_hosts_;
  CodingOptions options_;
  MessageStore board_;
  BucketEncoder encoder_;
  MessageSum sum_;
  TrafficCount traffic_;
  std::optional<HostMessages> travelling_;    ///< on several hosts
  std::vector<std::int64_t> sum_values_;      ///< per bucket: as of the last step
  std::vector<std::int64_t> touched_by_any_;  ///< per bucket: elements
  std::size_t owned_bytes_ = 0;  ///< of gradients that are sent to their owners as they are
  std::size_t max_bytes_ = 0;    ///< of a logical worker's messages
  // Messages that were made before the step was published.
  std::optional<std::uint64_t> early_step_;  ///< steps done before it
  std::size_t early_logical_ = 0;
  std::vector<std::size_t> unwritten_;  ///< per bucket, of early_logical_'s last leaf
  std::set<std::pair<std::size_t, std::size_t>> early_;  ///< logical worker and bucket
  std::vector<Carried> carried_;                         ///< per logical worker
  /// Per logical worker: a worker of the host that keeps what it kept; −1: all hosts do.
  std::vector<int> homes_;
  std::vector<std::vector<double>> squares_;        ///< of residuals, per logical worker and bucket
  std::vector<std::vector<double>> noted_squares_;  ///< of the step that is being completed
  double loss_scale_ = 1;
  bool is_prepared_ = false;
};

}  // namespace tutti
