#pragma once

// What the members tell each other in a call of a layer: whose samples there are, and for each
// sample the sums over all pieces and the row of its own class.
//
// Threads: one. Failure: what the public header says of forward(); that of the group's collectives.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch/classes/class_piece.h"
#include "torch/classes/classifier_rounds.h"
#include "torch/classes/classifier_settings.h"
#include "tutti/group.h"

namespace tutti {

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

class ClassifierExchange {
 public:
  /// Keeps references to the last two. The members compare which layer they make, and number it.
  /// Collective.
  ClassifierExchange(Group group, const ClassifierSettings& settings,
                     const ClassifierRounds& rounds);

  /// The layer's number, the same on all members.
  std::int64_t id() const { return id_; }
  /// Samples that count, by member, and the shards of each. InvalidArgument, and PeerFailed on the
  /// others, where one has a `problem`: in place of its number of rows, so that none waits for it.
  /// Mismatch where members are not at the same call, outside of a Trainer. Collective.
  void agree_on_rows(ClassifierCall& call, std::int64_t own, const std::string& problem,
                     bool samples_classes) const;
  /// The rows of all members, of which `rows` has the numbers. Collective.
  torch::Tensor gather_rows(const torch::Tensor& own, const std::vector<std::int64_t>& rows,
                            const char* what) const;
  /// Makes the call's leaves of the samples of all members. `key` is that of the one leaf that they
  /// are outside of a Trainer. Collective.
  void gather_leaves(ClassifierCall& call, const torch::Tensor& features,
                     const torch::Tensor& labels, std::uint64_t key) const;
  /// The sums over all classes of this member's samples; `nodes` are those over the own pieces, by
  /// leaf. Collective.
  torch::Tensor exchange_sums(const ClassifierCall& call,
                              const std::vector<std::vector<torch::Tensor>>& nodes) const;
  /// The rows of the own classes of this member's samples; `targets` by leaf and own piece.
  /// Collective.
  torch::Tensor exchange_targets(const ClassifierCall& call,
                                 const std::vector<std::vector<PieceTargets>>& targets) const;
  /// The label of a collective: "classifier: features".
  std::string label_of(std::string_view what) const;

 private:
  [[noreturn]] void throw_problem(const std::string& problem) const;
  LeafSamples leaf_of(torch::Tensor features, const torch::Tensor& labels, std::uint64_t key,
                      bool samples_classes) const;

  Group group_;
  const ClassifierSettings& settings_;
  const ClassifierRounds& rounds_;
  std::int64_t id_ = 0;
};

}  // namespace tutti
