#pragma once

// What is behind a ParallelCrossEntropy: this member's pieces, what the members tell each other,
// and the leaves whose gradients the next update takes.
//
//   forward   features and labels of all │ sums over the own classes, for all samples │ each
//             sample's sums go to the member that has the sample, which makes loss and gradient
//   backward  nothing is exchanged
//   step      log Σ e^z and the gradient of the loss of each sample, to all │ update of the pieces
//
// Threads: one. Failure: as the public header says.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/fold_program.h"
#include "kernels/rules/rule.h"
#include "run/files/run_fingerprint.h"
#include "torch/classes/class_piece.h"
#include "torch/classes/classifier_rounds.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti {

/// A layer's arguments, checked, with what follows from them.
struct ClassifierSettings {
  ClassifierSettings(std::int64_t features, std::int64_t classes, const Optimizer::Rule& rule,
                     const ParallelCrossEntropyOptions& options);

  std::int64_t features;
  std::int64_t classes;
  ParallelCrossEntropyOptions options;  ///< pieces are resolved
  UpdateRule rule;
  torch::ScalarType computed;

  /// Pieces [first, second) of a member.
  std::pair<std::int64_t, std::int64_t> pieces_of(int member, int members) const;
  /// Classes [first, second) of a piece.
  std::pair<std::int64_t, std::int64_t> classes_of(std::int64_t piece) const;
  std::int64_t piece_of(std::int64_t label) const;
  std::uint64_t bytes_per_class() const;
  /// Of weights and state.
  std::uint64_t bytes_of(int member, int members) const;
  /// Classes that take part in the loss of these samples.
  std::int64_t taking_part(std::span<const std::int64_t> labels, bool samples_classes) const;
  /// All that another layer has to have in common to go on with what this one has learnt.
  RunFingerprint facts() const;
  /// In errors: "classifier \"faces\"".
  std::string label() const;
};

/// One call of forward(): its leaves, as all members have them, and what this member alone knows of
/// its own samples. By default the samples of all members are one leaf; in a Trainer's step each
/// member's are those of the shard that it computes, and in its evaluation those of a batch.
struct ClassifierCall {
  std::int64_t number = 0;   ///< since the last update
  std::int64_t updates = 0;  ///< of the layer, before it
  std::int64_t era = 0;      ///< of the layer's rounds
  std::vector<LeafSamples> leaves;
  std::vector<std::int64_t> shards;  ///< of the leaves, in a Trainer's step; 0 in its evaluation
  // By member:
  std::vector<std::int64_t> rows;     ///< samples that count
  std::vector<bool> samples_classes;  ///< for them
  std::vector<std::int64_t> leaf_of;  ///< −1: it has none
  std::vector<std::int64_t> offsets;  ///< of its samples in their leaf
  // Of this member's samples that count, [b]:
  torch::Tensor log_sums;
  torch::Tensor gradients;  ///< of what it called backward() on, by their losses
  bool is_divided = false;  ///< by the sum of a step's weights
};

class Classifier {
 public:
  Classifier(const Group& group, ClassifierSettings settings);

  struct Losses {
    torch::Tensor losses;     ///< [b], 0 for samples that are ignored
    torch::Tensor gradients;  ///< [b, in], of each loss by its features
    torch::Tensor kept;       ///< which samples count: [n] of their indices
    torch::Tensor correct;    ///< [b]
    std::shared_ptr<ClassifierCall> call;
  };
  Losses forward(const torch::Tensor& features, const torch::Tensor& labels, bool is_training);
  torch::Tensor predict(const torch::Tensor& features);
  /// A backward has come to the call: its gradients will be part of the next update.
  /// InvalidArgument where the weights are no longer those of the call, where the step that it was
  /// in is over, and in a shard that runs a backward of its own.
  void take_backward(const std::shared_ptr<ClassifierCall>& call);
  /// What the calls' losses have as gradients, from all members. `rate_factor` is compared, if it
  /// is going to be used. Collective.
  void gather_gradients(double rate_factor = 1);
  /// The place in the tree (the shard, in a Trainer's step) of the first of those that were
  /// gathered and are not numbers; the same on all members.
  std::optional<std::int64_t> not_finite() const;
  /// ‖g‖² of what was gathered, the same for any number of members. Collective.
  double squares() const;
  /// Whether the sum of what was gathered, finite as it is, might not be; the same on all members.
  bool may_overflow() const;
  /// Multiplies the gradients that there are.
  void scale(double factor);
  /// Updates the weights by what was gathered, and forgets it. `how` has neither leaves nor number.
  void update(ClassUpdate how);
  /// Forgets all gradients, and ends the step of a Trainer, if there is one.
  void forget();
  /// Divides the gradients of calls since the last time, or the last update.
  void divide(double divisor);
  bool has_gradient_of_a_step_before() const;

  ClassifierRounds& rounds() { return rounds_; }
  /// Joins another member's call, without samples.
  void join_call(ClassifierUse use);

  /// The weights are those after so many updates; no calls have been made since.
  void set_updates(std::int64_t updates);

  const ClassifierSettings& settings() const { return settings_; }
  std::vector<ClassPiece>& own_pieces() { return pieces_; }
  std::int64_t updates() const { return updates_; }
  const Group& group() const { return group_; }

 private:
  // What the members tell each other (classifier_exchange.cpp).
  /// Samples that count, by member, and the shards of each. InvalidArgument, and PeerFailed on the
  /// others, where one has a `problem`: in place of its number of rows, so that none waits for it.
  /// Mismatch where members are not at the same call, outside of a Trainer.
  void agree_on_rows(ClassifierCall& call, std::int64_t own, const std::string& problem,
                     bool samples_classes) const;
  [[noreturn]] void throw_problem(const std::string& problem) const;
  torch::Tensor gather_rows(const torch::Tensor& own, const std::vector<std::int64_t>& rows,
                            const char* what) const;
  void gather_leaves(ClassifierCall& call, const torch::Tensor& features,
                     const torch::Tensor& labels) const;
  /// `nodes` by leaf.
  torch::Tensor exchange_sums(const ClassifierCall& call,
                              const std::vector<std::vector<torch::Tensor>>& nodes) const;
  /// `targets` by leaf and own piece.
  torch::Tensor exchange_targets(const ClassifierCall& call,
                                 const std::vector<std::vector<PieceTargets>>& targets) const;
  void add(const std::shared_ptr<ClassifierCall>& call);
  Losses forward_with_all(const torch::Tensor& features, const torch::Tensor& labels,
                          bool is_training, bool learns);
  torch::Tensor predict_with_all(const torch::Tensor& features);
  /// Of a collective: "classifier: features".
  std::string label_of(std::string_view what) const;

  std::vector<torch::Tensor> memory_of_pieces(torch::ScalarType type) const;
  LeafSamples leaf_of(torch::Tensor features, std::vector<std::int64_t> labels, std::uint64_t key,
                      bool samples_classes) const;
  /// Losses and gradients of this member's samples, from the sums over all classes and the rows of
  /// their own ones.
  void finish(Losses& result, const torch::Tensor& own, const torch::Tensor& sums,
              const torch::Tensor& found) const;

  Group group_;
  ClassifierSettings settings_;
  ClassifierRounds rounds_;
  std::int64_t id_;  ///< of the layer, the same on all members
  std::vector<ClassPiece> pieces_;
  std::int64_t first_piece_ = 0;
  std::int64_t updates_ = 0;
  std::int64_t calls_ = 0;           ///< of forward(), since the last update
  std::int64_t training_calls_ = 0;  ///< of them, in training
  std::vector<std::shared_ptr<ClassifierCall>> pending_;
  std::vector<LeafGradient> gradients_;  ///< that were gathered, of leaves of `pending_`
  std::int64_t leaves_ = 1;              ///< of the tree that they are folded along
};

}  // namespace tutti
