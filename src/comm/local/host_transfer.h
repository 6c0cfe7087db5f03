#pragma once

// The chunks of a large operation of a group on several hosts. Each host folds what it can of its
// own members' data, one host for each element folds what the hosts have, and all get the result,
// so that a host sends what it has about twice, however many members it has. What is not reduced
// goes to the hosts that take it. Memory of other hosts' members has here what came from them, in
// the places that it has there.
//
// Threads: one. Failure: none.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "comm/hosts/host_layout.h"
#include "comm/hosts/host_pipeline.h"
#include "comm/local/transfer.h"

namespace tutti {

class HostTransfer final : public HostWork {
 public:
  /// Chunk 0 of the operation is the lane's piece `first`. Keeps a reference.
  HostTransfer(const Transfer& operation, std::uint64_t first);

  void stage(std::uint64_t piece) override { op_.stage(piece - first_, piece); }
  void fold(std::uint64_t piece) override;
  void sum(std::uint64_t piece) override;
  void collect(std::uint64_t piece) override;
  void visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) override;
  void visit_sums(std::uint64_t piece, int from, int to, const Visit& visit) override;

 private:
  using Range = Transfer::Range;
  Range range_of(std::uint64_t piece) const { return op_.chunk_range(piece - first_); }
  /// Returns the elements of a chunk's memory that a host adds up.
  Range slice_of(std::uint64_t piece, int host) const {
    return Transfer::cut({0, range_of(piece).count()}, host, hosts_.hosts);
  }
  /// Elements that a part of so many has in a chunk.
  std::int64_t count_in(std::uint64_t piece, const Range& part) const {
    return Transfer::within(range_of(piece), part.count()).count();
  }
  bool is_on(int member, int host) const {
    return hosts_.host_of[static_cast<std::size_t>(member)] == host;
  }
  std::byte* staging(std::size_t member, std::uint64_t piece) const {
    return op_.control_->staging(static_cast<int>(member), piece);
  }
  using RangeVisit = std::function<void(std::int64_t begin, std::int64_t count)>;
  void visit_ranges(std::uint64_t piece, int host, const RangeVisit& visit) const;
  std::byte* place_of(const HostSubtree& subtree, std::uint64_t piece) const;
  std::byte* sums_of(int host, std::uint64_t piece) const;
  void fold_subtrees(std::uint64_t piece, std::int64_t begin, std::int64_t count) const;
  void sum_subtrees(std::uint64_t piece, std::int64_t begin, std::int64_t count,
                    void* destination) const;

  const Transfer& op_;
  std::uint64_t first_;
  const HostLayout& hosts_;
  const HostSubtrees& subtrees_;
};

}  // namespace tutti
