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
#include <vector>

#include "torch/classes/class_piece.h"
#include "torch/classes/classifier_exchange.h"
#include "torch/classes/classifier_rounds.h"
#include "torch/classes/classifier_settings.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti {

class Classifier {
 public:
  Classifier(const Group& group, ClassifierSettings settings);
  Classifier(const Classifier&) = delete;
  Classifier& operator=(const Classifier&) = delete;

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
  void add(const std::shared_ptr<ClassifierCall>& call);
  Losses forward_with_all(const torch::Tensor& features, const torch::Tensor& labels,
                          bool is_training, bool learns);
  torch::Tensor predict_with_all(const torch::Tensor& features);
  std::vector<torch::Tensor> memory_of_pieces(torch::ScalarType type) const;
  /// Losses and gradients of this member's samples, from the sums over all classes and the rows of
  /// their own ones.
  void finish(Losses& result, const torch::Tensor& own, const torch::Tensor& sums,
              const torch::Tensor& found) const;

  Group group_;
  ClassifierSettings settings_;
  ClassifierRounds rounds_;
  ClassifierExchange exchange_;
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
