#pragma once

// The weighted sum of all messages, along the tree over the logical workers. Lists are merged, at
// the cost of their entries alone: the owner of a range of elements reads that range of every list,
// so that the work, like the bytes, is split over the workers. Arrays are folded.
//
// Threads: one. The messages are read only.

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/fold_program.h"
#include "tutti/codec.h"

namespace tutti {

/// One logical worker's message, and where the current parameter begins in it.
struct SumTerm {
  std::span<const std::byte> message;
  EncodeContext context = {};  ///< in which it was encoded
  std::int64_t first = 0;      ///< of its values, the parameter's first
  double share = 1;
  Block place;  ///< any leaf of the logical worker: what is absent vanishes
};

class MessageSum {
 public:
  /// The tree has `leaves` leaves. Keeps a reference.
  MessageSum(const Codec& codec, std::int64_t leaves);

  /// The parameter's elements begin … begin + to.size(), at most kTile of them. Terms ascend.
  void take(std::span<const SumTerm> terms, std::int64_t begin, std::span<float> to);

 private:
  bool take_lists(std::span<const SumTerm> terms, std::int64_t begin, std::span<float> to);
  void take_arrays(std::span<const SumTerm> terms, std::int64_t begin, std::span<float> to);
  float fold_entries(std::span<const SumTerm> terms, std::uint64_t present, std::int64_t element);
  const FoldProgram& program_of(std::span<const SumTerm> terms, std::uint64_t present);

  const Codec& codec_;
  std::int64_t leaves_;
  std::map<std::vector<std::int64_t>, FoldProgram> programs_;  ///< by the leaves that are present
  std::vector<float> tiles_;
  std::vector<MessageList> lists_;      ///< of the current range
  std::vector<std::uint64_t> present_;  ///< per element: bit k for term k; 0 between calls
  std::vector<std::uint32_t> shared_;   ///< elements that more than one list has
};

}  // namespace tutti
