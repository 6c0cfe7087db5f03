#include "comm/local/host_transfer.h"

#include <vector>

#include "comm/local/copy.h"

namespace tutti {
namespace {

using Kind = OperationKind;

/// What a host has folded of 16-bit floats would be twice as wide.
bool folds_on_hosts(DType type) { return !is_floating(type) || size_of(type) != 2; }

}  // namespace

HostTransfer::HostTransfer(const Transfer& operation, std::uint64_t first)
    : op_(operation),
      first_(first),
      hosts_(*operation.members_->hosts),
      subtrees_(folds_on_hosts(operation.dtype_) ? hosts_.subtrees : hosts_.leaves) {}

/// What has been folded below a subtree; a member's own data lie there already.
std::byte* HostTransfer::place_of(const HostSubtree& subtree, std::uint64_t piece) const {
  if (subtree.is_leaf()) return staging(subtree.begin, piece);
  return op_.control_->results(static_cast<int>(subtree.begin), piece);
}

/// Sums lie where the first member of the host that has made them had its own data.
std::byte* HostTransfer::sums_of(int host, std::uint64_t piece) const {
  return op_.control_->staging(hosts_.first_of[static_cast<std::size_t>(host)], piece);
}

/// Folds `count` elements, from `begin` of a chunk's memory on, of each subtree on this host.
void HostTransfer::fold_subtrees(std::uint64_t piece, std::int64_t begin,
                                 std::int64_t count) const {
  if (count == 0) return;
  for (std::size_t s = 0; s < subtrees_.all.size(); ++s) {
    const HostSubtree& subtree = subtrees_.all[s];
    if (subtree.host != hosts_.here || subtree.is_leaf()) continue;
    std::vector<const void*> sources;
    for (auto member = subtree.begin; member < subtree.end; ++member) {
      sources.push_back(staging(member, piece) + op_.size_bytes(begin));
    }
    void* const destination = place_of(subtree, piece) + op_.size_bytes(begin);
    op_.fold_values({.program = &subtrees_.within[s],
                     .sources = sources,
                     .destinations = {&destination, 1},
                     .count = count},
                    {});
  }
}

/// The same of what all hosts have.
void HostTransfer::sum_subtrees(std::uint64_t piece, std::int64_t begin, std::int64_t count,
                                void* destination) const {
  if (count == 0) return;
  std::vector<const void*> sources;
  for (const auto& subtree : subtrees_.all) {
    sources.push_back(place_of(subtree, piece) + op_.size_bytes(begin));
  }
  op_.fold_values({.program = &subtrees_.program,
                   .divisor = divisor_of(op_.reduction_, op_.members_->size),
                   .sources = sources,
                   .destinations = {&destination, 1},
                   .count = count},
                  subtrees_.present);
}

/// Calls `visit` with the elements of a chunk's memory that a host adds up: a slice, or the parts
/// of its members.
void HostTransfer::visit_ranges(std::uint64_t piece, int host, const RangeVisit& visit) const {
  if (op_.kind_ != Kind::reduce_scatter) {
    const Range slice = slice_of(piece, host);
    return visit(slice.begin, slice.count());
  }
  for (int taker = 0; taker < op_.members_->size; ++taker) {
    if (!is_on(taker, host)) continue;
    visit(taker * op_.chunk_elements_, count_in(piece, op_.part(taker)));
  }
}

/// Folds the same elements of each subtree.
void HostTransfer::fold(std::uint64_t piece) {
  if (!reduces(op_.kind_)) return;
  for (int host = 0; host < hosts_.hosts; ++host) {
    visit_ranges(piece, host, [&](std::int64_t begin, std::int64_t count) {
      const Range own = Transfer::cut({begin, begin + count}, hosts_.team.rank, hosts_.team.size());
      fold_subtrees(piece, own.begin, own.count());
    });
  }
}

void HostTransfer::sum(std::uint64_t piece) {
  if (op_.kind_ == Kind::all_reduce || op_.kind_ == Kind::reduce) {
    const Range own =
        Transfer::cut(slice_of(piece, hosts_.here), hosts_.team.rank, hosts_.team.size());
    sum_subtrees(piece, own.begin, own.count(),
                 sums_of(hosts_.here, piece) + op_.size_bytes(own.begin));
  }
  if (op_.kind_ == Kind::reduce_scatter) {
    const int rank = op_.members_->rank;
    sum_subtrees(piece, rank * op_.chunk_elements_, count_in(piece, op_.part(rank)),
                 op_.out_at(range_of(piece).begin));
  }
}

void HostTransfer::collect(std::uint64_t piece) {
  if (!reduces(op_.kind_)) return op_.work(piece - first_, piece);
  if (op_.kind_ == Kind::reduce_scatter || !op_.takes(op_.members_->rank)) return;
  for (int host = 0; host < hosts_.hosts; ++host) {
    const Range slice = slice_of(piece, host);
    copy_shared(op_.out_at(range_of(piece).begin + slice.begin),
                sums_of(host, piece) + op_.size_bytes(slice.begin), op_.size_bytes(slice.count()));
  }
}

void HostTransfer::visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) {
  const int size = op_.members_->size;
  const auto give = [&](std::byte* at, std::int64_t begin, std::int64_t count) {
    if (count > 0) visit({at + op_.size_bytes(begin), op_.size_bytes(count)});
  };
  if (reduces(op_.kind_)) {
    return visit_ranges(piece, to, [&](std::int64_t begin, std::int64_t count) {
      for (const auto& subtree : subtrees_.all) {
        if (subtree.host == from) give(place_of(subtree, piece), begin, count);
      }
    });
  }
  for (int giver = 0; giver < size; ++giver) {
    if (!op_.gives(giver) || !is_on(giver, from)) continue;
    std::byte* const at = op_.control_->staging(giver, piece);
    if (!gives_parts(op_.kind_)) {
      const bool is_taken = !is_to_root(op_.kind_) || is_on(op_.root_, to);
      const auto whole =
          op_.kind_ == Kind::broadcast ? range_of(piece).count() : count_in(piece, op_.part(giver));
      if (is_taken) give(at, 0, whole);
      continue;
    }
    for (int taker = 0; taker < size; ++taker) {
      if (!is_on(taker, to)) continue;
      give(at, taker * op_.chunk_elements_, count_in(piece, op_.given(giver, taker)));
    }
  }
}

void HostTransfer::visit_sums(std::uint64_t piece, int from, int to, const Visit& visit) {
  const bool is_taken = op_.kind_ == Kind::reduce && is_on(op_.root_, to);
  if (op_.kind_ != Kind::all_reduce && !is_taken) return;
  const Range slice = slice_of(piece, from);
  if (slice.count() == 0) return;
  visit({sums_of(from, piece) + op_.size_bytes(slice.begin), op_.size_bytes(slice.count())});
}

}  // namespace tutti
