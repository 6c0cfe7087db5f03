#pragma once

// What sources of arrays have in common: their elements are dealt in tiles, and where sums are kept
// an array of them lies in its owner's arena.
//
// Threads: one.

#include <cstdint>
#include <span>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/step/gradient_source.h"

namespace tutti {

class ArraySource : public GradientSource {
 public:
  /// Keeps a reference.
  ArraySource(NodeStore& nodes, std::vector<std::uint32_t> parameters);

  std::span<const std::uint32_t> parameters() const override { return parameters_; }
  bool touched(std::uint32_t parameter) const override { return nodes_.touched(parameter); }
  std::vector<ElementRange> shares(std::span<const std::uint32_t> parameters,
                                   int rank) const override;
  void fold(const ElementRange& range, const Take& take) override;
  void read(const ElementRange& range, const Take& take) override;
  std::size_t norm_blocks(std::uint32_t parameter) const override;
  void keep(std::span<const ElementRange> owned, const Squares& squares) override;
  void kept(int rank, const ElementRange& range, const Take& take) const override;

 protected:
  const NodeStore& nodes() const { return nodes_; }
  const PlanEntry& entry_of(std::uint32_t parameter) const {
    return nodes_.plan().parameters()[parameter];
  }
  /// Elements of a touched parameter to `to`, of the node type; with `counts`, as their owner.
  virtual void fold_to(const ElementRange& range, void* to, bool counts) = 0;

 private:
  std::byte* kept_at(int rank, const ElementRange& range) const;
  void in_tiles(const ElementRange& range, bool counts, const Take& take);

  NodeStore& nodes_;
  std::vector<std::uint32_t> parameters_;
  std::vector<std::byte> tile_;
};

}  // namespace tutti
