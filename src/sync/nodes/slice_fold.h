#pragma once

// A slice owner's work: of the touched parameters of a bucket, fold its share of the elements from
// all workers' nodes, in tree order, and divide once. What becomes of the sum is the caller's
// business, or fold()'s, which stores it to every worker's arena.
//
// Threads: one, which NodeStore::for_tiles() may have share folds with others. The nodes of all
// workers must be published.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "sync/nodes/node_store.h"
#include "sync/plan/tile_share.h"

namespace tutti {

/// A worker's share of those of the given parameters that are touched, and partitioned.
std::vector<ElementRange> touched_share(const NodeStore& nodes,
                                        std::span<const std::uint32_t> parameters, int rank);

/// Calls `run` with elements [begin, end) of `whole`.
template <class Run>
void run_part(const Fold& whole, std::int64_t begin, std::int64_t end, const Run& run) {
  if (begin == 0 && end == whole.count) return run(whole);
  const auto skip = [&](DType type) { return static_cast<std::size_t>(begin) * size_of(type); };
  std::vector<const void*> from;
  for (const auto* p : whole.sources) {
    from.push_back(static_cast<const std::byte*>(p) + skip(whole.source_type));
  }
  std::vector<void*> to;
  for (auto* p : whole.destinations) {
    to.push_back(static_cast<std::byte*>(p) + skip(whole.result_type));
  }
  Fold part = whole;
  part.sources = from;
  part.destinations = to;
  part.count = end - begin;
  run(part);
}

class SliceFold {
 public:
  /// Keeps a reference.
  explicit SliceFold(const NodeStore& nodes) : nodes_(nodes) {}

  /// Folds elements [begin, end) of the sources' parameter, of the node type, to destinations of
  /// `result_type`.
  void fold(const NodeSources& sources, std::int64_t begin, std::int64_t end, DType result_type,
            std::span<void* const> destinations);

  /// The same as a Fold without destinations, whose spans hold until the next call. At most
  /// kMaxSources nodes.
  Fold fold_of(const NodeSources& sources, std::int64_t begin, std::int64_t end);

  /// Folds this worker's share of the given parameters to all arenas; all workers call it with the
  /// same list, each for its own share.
  void fold(std::span<const std::uint32_t> parameters);

 private:
  Fold work_of(const NodeSources& sources, std::int64_t begin, std::int64_t end);
  const FoldProgram& program_of(const std::string& pattern);
  std::vector<Block> present(const std::string& pattern) const;

  const NodeStore& nodes_;
  std::map<std::string, FoldProgram> programs_;  ///< by pattern of presence, for nodes of shape_
  std::uint64_t shape_ = 0;
  std::vector<const void*> at_;  ///< where the elements begin in each node
};

}  // namespace tutti
