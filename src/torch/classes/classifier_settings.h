#pragma once

// What a layer is made with, and what follows from it: where the pieces are cut, what they cost,
// and what a checkpoint has to have in common.
//
// Threads: values. Failure: InvalidArgument and Unsupported as the public header says.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "kernels/rules/rule.h"
#include "run/files/run_fingerprint.h"
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
  /// Bytes of a member's weights and state.
  std::uint64_t bytes_of(int member, int members) const;
  /// Classes that take part in the loss of these samples.
  std::int64_t taking_part(std::span<const std::int64_t> labels, bool samples_classes) const;
  /// All that another layer has to have in common to go on with what this one has learnt.
  RunFingerprint facts() const;
  /// In errors: "classifier \"faces\"".
  std::string label() const;
};

}  // namespace tutti
