#pragma once

// Averaging policies: how often, and how, the parameters of replicas that train on their own are
// averaged (local SGD, blockwise model-update filtering, DiLoCo, partial update). Without a policy
// the gradients of all shards are averaged in every step. With one, each of the L logical workers
// has parameters, optimizer state and buffers of its own, which its own shards' gradients update in
// every step; when a bucket of parameters is due, an averaging round makes all copies of it equal.
// All of them are lossy and experimental: docs/averaging.md has what each one does, and when it
// pays.
//
//   tutti::Trainer trainer(job, *model, tutti::Sgd{.lr = 0.1, .momentum = 0.9},
//                          {.shards = 8, .logical_workers = 4,
//                           .averaging = tutti::local_sgd(16)});
//
// Threads: policies are immutable values; their functions may be called by several
// threads at once. Failure: InvalidArgument for numbers that make no sense.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Some elements of a parameter whose copies are averaged.
struct AveragingRound {
  /// On entry the mean of all logical workers' copies, folded in tree order and divided by L in the
  /// type of the parameter (of its float32 master copy, where it is a 16-bit one); what is left
  /// here, rounded to that type, becomes the value of all copies.
  std::span<double> values;
  /// The value of all copies when the bucket was last due, or at the start of training. Only where
  /// there are states() or sends_int8().
  std::span<const double> before;
  std::int64_t logical_workers = 1;
  /// The step that ends, counted from 1; with an overlap() the step at whose end the mean was
  /// taken.
  std::int64_t step = 1;
  /// One for each of states(), zero at first. Kept in the type of the parameter.
  std::vector<std::span<double>> states;
};

/// How the sending of copies overlaps with the steps that follow.
struct AveragingOverlap {
  /// Between the step at whose end a bucket is due and the one at whose end its mean is applied.
  /// 0: the same step. Between hosts what a Trainer sends travels meanwhile.
  std::int64_t steps = 0;
  /// At the end of each step up to this one, the mean is applied in the same step all the same.
  std::int64_t after = 0;
  /// α in [0, 1): where a mean is applied later, copy ← α · copy + (1 − α) · the value of
  /// combine().
  double own = 0.5;
};

class AveragingPolicy {
 public:
  virtual ~AveragingPolicy() = default;
  /// Tells it apart from every other, parameters included: "local-sgd:16". Compared on all workers,
  /// and part of a run.
  virtual std::string name() const = 0;
  /// Whether that bucket of parameters, 0 … buckets−1, is due at the end of `step`, counted from 1.
  /// Buckets are formed in registration order, as Compression::fusion says. Of a bucket that is
  /// due, only parameters take part that some logical worker updated since it was last due.
  /// A policy with fragments() is asked of fragments instead of buckets. The same on all workers: a
  /// Trainer compares it in every step.
  virtual bool due(std::int64_t step, std::int64_t bucket, std::int64_t buckets) const = 0;
  /// Fragments of the model that are due one by one: groups of parameters that are neighbours in
  /// registration order, of which the largest has as few bytes as there can be. Unless overridden
  /// 0: each bucket is due by itself. InvalidArgument where there are fewer parameters.
  virtual std::int64_t fragments() const;
  /// Tensors that combine() keeps of each parameter. Unless overridden: none.
  virtual int states() const;
  /// Whether each logical worker sends the difference between its copy and `before`, in 8-bit
  /// integers with error feedback, instead of its copy. Of parameters other than float32, float16
  /// and bfloat16 that is Unsupported. Unless overridden: no.
  virtual bool sends_int8() const;
  /// Unless overridden there is none, and all copies are equal when they have been averaged. A
  /// bucket that is due while a mean of it is not applied yet is not sent.
  virtual AveragingOverlap overlap() const;
  /// Each element for itself: pieces are cut as it suits. Unless overridden, the mean is left.
  virtual void combine(const AveragingRound& round) const;
};

using AveragingPolicyPointer = std::shared_ptr<const AveragingPolicy>;

/// Every step one bucket is due, in turn (the partial update of Apache SINGA).
AveragingPolicyPointer partial_update();
/// All buckets are due in each of the first `warm_up` steps, and in every `period`-th step after
/// them (McMahan et al. 2017, arXiv 1602.05629; Stich 2019, arXiv 1805.09767). `period` at least 1.
AveragingPolicyPointer local_sgd(std::int64_t period, std::int64_t warm_up = 0);

struct BlockMomentum {
  double momentum = -1;  ///< η in [0, 1); −1: 1 − 1/L
  double rate = 1;       ///< ζ > 0
  bool nesterov = false;
};
/// Blockwise model-update filtering (Chen and Huo 2016, "Scalable training of deep learning
/// machines by incremental block training with intra-block parallel optimization and blockwise
/// model-update filtering", ICASSP). Due as local_sgd; with the mean M of the copies, what all
/// copies were before B and the step Δ that is kept:
///   Δ' = η·Δ + ζ·(M − B)        values = B + Δ', or B + Δ' + η·(Δ' − Δ) in Nesterov's form
AveragingPolicyPointer block_momentum(std::int64_t period, std::int64_t warm_up = 0,
                                      const BlockMomentum& numbers = {});

struct Diloco {
  double rate = 0.7;           ///< of the outer step, above 0
  double momentum = 0.9;       ///< of the outer step, in [0, 1)
  std::int64_t fragments = 1;  ///< that are averaged in turn, 1 … period
  /// Steps at whose end the mean of everything is taken as it is. Unless given, one period: outer
  /// momentum that begins with the first steps, which are the largest, is carried on for long.
  std::optional<std::int64_t> warm_up = {};
  /// Differences are sent as int8_codec() sends gradients: 3.94 times fewer bytes both ways.
  bool int8 = false;
  /// τ: steps between the one that sends a fragment and the one that applies its mean, below
  /// period ÷ fragments. Not in the warm-up.
  std::int64_t overlap = 0;
  double own = 0.5;  ///< AveragingOverlap::own
};
/// DiLoCo (Douillard et al. 2023, arXiv 2311.08105), whose outer step is that of block_momentum in
/// Nesterov's form. Meant for AdamW as the optimizer, of which each logical worker keeps its own
/// state. After the warm-up each of `fragments` parts of the model is due once in `period` steps,
/// in turn, as in Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512), whose overlap and
/// mixing of copies (algorithm 2) are those of `overlap` and `own`: fragment f of F when
/// ⌊(f + 1)·period / F⌋ steps of a round are over.
AveragingPolicyPointer diloco(std::int64_t period, const Diloco& numbers = {});

/// InvalidArgument for one without a name, with a negative number of states or fragments, or with
/// an overlap that makes no sense.
void validate(const AveragingPolicy& averaging);

/// "every-step" (a null pointer), "partial", "local-sgd:16", "bmuf:16", and
/// "diloco:32[,rate[,momentum]][,fragments=4][,warm-up=100][,int8][,overlap=4][,own=0.5]".
/// InvalidArgument for anything else, with the names that there are.
AveragingPolicyPointer averaging_policy_of(std::string_view text);

/// The optimizer's state where the copies of a parameter are averaged.
enum class StateAtAveraging : std::uint8_t {
  keep,     ///< each logical worker keeps its own
  average,  ///< the mean of all; the most updates that one of them counts
  reset,    ///< as at the start of training
};

/// "keep", "average", "reset".
std::string_view name_of(StateAtAveraging rule);

}  // namespace tutti
