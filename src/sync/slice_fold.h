#pragma once

// A slice owner's work: of the touched parameters of a bucket, fold its share of the elements from
// all workers' nodes, in tree order, divide once, and store the sum to every worker's arena.
//
// Threads: one. The nodes of all workers must be published.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "sync/plan.h"
#include "sync/step_board.h"

namespace tutti {

/// What the reduced gradient is divided by.
enum class Divisor : std::uint8_t {
  weights,       ///< Σ of all leaves' weights
  contributors,  ///< per parameter, Σ of the weights of the leaves that wrote it
  none,          ///< nothing: the weighted sum itself
};

/// One node of one worker.
struct HeldNode {
  int worker;  ///< rank in the group
  int row;     ///< of the worker's slot table
  Block block;
  double weight;
};

class SliceFold {
 public:
  SliceFold(const Plan& plan, std::vector<std::byte*> arenas, std::vector<StepBoard> boards,
            Divisor divisor);

  /// Takes over the step's nodes, ascending over all workers, and adds up their weights.
  void begin(std::vector<HeldNode> nodes, std::int64_t leaves);
  std::int64_t leaves() const { return leaves_; }
  /// Σ of all leaves' weights, folded along the tree.
  double weight() const { return weight_; }

  /// Folds this rank's share of the given parameters; all ranks call it with the same list, each
  /// for its own share. Returns the padded bytes of the touched parameters among them.
  std::size_t fold(std::span<const std::uint32_t> parameters, int rank);

  bool touched(std::size_t parameter) const;

 private:
  struct Share {
    std::uint32_t parameter;
    std::size_t begin, end;  ///< bytes, counted over the touched parameters of the bucket
  };
  void fold_elements(std::size_t parameter, std::int64_t begin, std::int64_t end);
  void run(std::string pattern, Fold work);
  std::vector<Block> present(const std::string& pattern) const;

  const Plan& plan_;
  std::vector<std::byte*> arenas_;
  std::vector<StepBoard> boards_;
  Divisor divisor_;
  std::vector<HeldNode> nodes_;
  std::int64_t leaves_ = 0;
  double weight_ = 0;
  std::map<std::string, FoldProgram> programs_;  ///< by pattern of presence, for the nodes at hand
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace tutti
