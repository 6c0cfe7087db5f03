#pragma once

// One piece of the classes: its weights, the optimizer's state, and the arithmetic over some
// thousand classes at a time.
//
// Every number is computed from the piece and the leaf alone, by products of shapes that depend on
// these: which member has the piece, and what else it has, decides no bit.
//
// Threads: one. Failure: none but torch's; arguments are checked by callers.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/fold_program.h"
#include "kernels/rules/rule.h"
#include "torch/classes/classifier_settings.h"

namespace tutti {

/// Samples whose gradient is one leaf of the tree, on every member. All count.
struct LeafSamples {
  torch::Tensor features;            ///< [B, in], in the memory of an own tensor
  std::vector<std::int64_t> labels;  ///< B classes
  std::uint64_t key = 0;             ///< of its choice of classes
  std::int64_t taking_part = 0;      ///< classes, of all pieces
  bool samples_classes = false;
  /// What logits are products of: the features, or their directions times the margin's scale.
  torch::Tensor inputs;
};

/// A leaf whose losses have had their backward.
struct LeafGradient {
  const LeafSamples* samples;
  std::int64_t place;             ///< in the tree
  torch::Tensor inputs;           ///< [B, in]: those of the samples, 0 of those that count nothing
  torch::Tensor log_sums;         ///< [B]: log Σ e^z over all classes
  torch::Tensor weighted_inputs;  ///< [B, in]: each sample's, times the gradient of its loss
};

/// Of samples of a leaf whose class is in a piece: rows of [n, in + 3], in the order of the
/// samples: the class's weights (their direction where there is a margin), the logit, its slope,
/// and the logit without the margin.
struct PieceTargets {
  std::vector<std::int64_t> samples;
  torch::Tensor rows;
};

/// What becomes of the leaves' gradient: gradient_scale · sum / divisor, clamped to ±clip_value, is
/// the rule's.
struct ClassUpdate {
  std::int64_t leaves = 1;  ///< of the tree that the sum is folded along
  std::int64_t number = 1;  ///< of the update, counted from 1
  double divisor = 1;
  double gradient_scale = 1;
  double clip_value = 0;  ///< 0: no bound
  double rate_factor = 1;
};

class ClassPiece {
 public:
  /// Keeps a reference. The classes of the piece of this index, in the memory of these matrices
  /// [classes, in], which get initial values.
  ClassPiece(const ClassifierSettings& settings, std::int64_t index, torch::Tensor weights,
             std::vector<torch::Tensor> states);

  std::int64_t first() const { return first_; }
  std::int64_t count() const { return weights_.size(0); }
  torch::Tensor& weights() { return weights_; }
  std::vector<torch::Tensor>& states() { return states_; }

  /// The sums of ClassSums over the classes that take part.
  torch::Tensor sums(const LeafSamples& leaf, PieceTargets& targets) const;
  /// One update by the leaves' gradients.
  void update(std::span<const LeafGradient> gradients, const ClassUpdate& how);
  /// Σ x² over their sum, folded along the tree over `leaves` leaves.
  double squares(std::span<const LeafGradient> gradients, std::int64_t leaves) const;
  /// Largest logit of each sample and its class, the lowest of equals: [B] each.
  std::pair<torch::Tensor, torch::Tensor> largest(const torch::Tensor& inputs) const;

 private:
  /// Weights of a chunk of classes, in the type of the arithmetic.
  struct Chunk {
    std::int64_t begin;     ///< among the rows that are asked for
    torch::Tensor weights;  ///< [k, in]
    torch::Tensor inputs;   ///< the same, or their directions
    torch::Tensor norms;    ///< [k, 1]; undefined without a margin
  };
  struct Target {
    std::int64_t sample;
    std::int64_t row;  ///< of the classes that take part
  };
  /// A leaf in an update.
  struct Part {
    const LeafGradient* leaf;
    std::vector<std::int32_t> rows;  ///< that take part
    std::vector<Target> targets;
  };
  /// The sum of the leaves' gradients by a chunk: the fold of `nodes`.
  struct Sum {
    Chunk chunk;
    torch::Tensor rows;  ///< see chunk()
    FoldProgram program;
    std::vector<torch::Tensor> nodes;
  };
  void for_each_sum(std::span<const LeafGradient> gradients, std::int64_t leaves,
                    const std::function<void(const Sum&)>& take) const;
  std::vector<std::int32_t> rows_of(const LeafSamples& leaf) const;
  std::vector<Target> targets_of(const LeafSamples& leaf, std::span<const std::int32_t> rows) const;
  /// Rows [begin, begin + count) of the given ones, or of all where `rows` is undefined.
  Chunk chunk(const torch::Tensor& rows, std::int64_t begin, std::int64_t count) const;
  /// [k, in], of the leaf's losses by the weights of the chunk. `targets` are those of its rows.
  torch::Tensor gradient(const LeafGradient& leaf, const Chunk& chunk,
                         std::span<const Target> targets) const;
  /// The leaf's gradient by the chunk's weights; undefined where none of its rows take part. `rows`
  /// are those of the chunk, or none where all classes take part in all leaves.
  torch::Tensor node_of(const Part& part, const Chunk& whole,
                        std::span<const std::int32_t> rows) const;
  void apply(const Sum& sum, const ClassUpdate& how, const PreparedUpdate& rule);
  void store(const torch::Tensor& updated, const torch::Tensor& rows, std::int64_t begin,
             std::int64_t number);

  const ClassifierSettings& settings_;
  std::int64_t index_;
  std::int64_t first_;
  torch::Tensor weights_;
  std::vector<torch::Tensor> states_;
};

/// The logit of a sample's own class.
struct TargetLogit {
  double value = 0;  ///< with the margin
  double slope = 1;  ///< d value / d logit without it
};
/// `plain` is scale·cos θ, or any logit where there is no margin.
TargetLogit target_logit(const std::optional<Margin>& margin, double plain);
/// Classes of a chunk for a leaf of that many samples.
std::int64_t chunk_classes(std::int64_t samples);
/// What the logits of a layer with this margin are products of: see LeafSamples::inputs.
torch::Tensor inputs_of(const torch::Tensor& features, const std::optional<Margin>& margin);
/// Where `one` is larger; NaN is larger than all but NaN, as in torch.
torch::Tensor is_larger(const torch::Tensor& one, const torch::Tensor& other);
/// Lengths of rows, none below 1e-12: [B, 1].
torch::Tensor lengths_of(const torch::Tensor& rows);

}  // namespace tutti
