// Large operations of a group on several hosts: each host folds what it can of its own members'
// data, one host for each element folds what the hosts have, and all get the result, so that a
// host sends what it has about twice, however many members it has. Memory of other hosts' members
// has here what came from them, in the places that it has there.

#include <algorithm>
#include <vector>

#include "comm/local/copy.h"
#include "comm/local/transfer.h"
#include "tutti/share.h"

namespace tutti {

const HostSubtrees& Transfer::subtrees() const {
  // What a host has folded of 16-bit floats would be twice as wide.
  const bool is_narrow = is_floating(dtype_) && element_bytes_ == 2;
  return is_narrow ? members_->hosts->leaves : members_->hosts->subtrees;
}

/// What has been folded below a subtree; a member's own data lie there already.
std::byte* Transfer::place_of(const HostSubtree& subtree, std::uint64_t half) const {
  const int first = static_cast<int>(subtree.begin);
  return subtree.is_leaf() ? control_->staging(first, half) : control_->results(first, half);
}

/// Sums lie where the first member of the host that has made them had its own data.
std::byte* Transfer::sums_of(int host, std::uint64_t half) const {
  return control_->staging(members_->hosts->first_of[static_cast<std::size_t>(host)], half);
}

/// Nothing is in memory that all members map.
void Transfer::resolve_for_hosts() {
  in_place_.assign(static_cast<std::size_t>(members_->size), nullptr);
  out_place_.assign(static_cast<std::size_t>(members_->size), nullptr);
  agree_on_extent();
  assume_staging();
}

void Transfer::stage_for_hosts(std::uint64_t chunk, std::uint64_t half) const {
  const Range range = chunk_range(chunk);
  std::byte* const to = control_->staging(members_->rank, half);
  switch (kind_) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
      return copy_shared(to, in_at(range.begin), size_bytes(range.count()));
    case OperationKind::reduce_scatter:
      for (int member = 0; member < members_->size; ++member) {
        const std::int64_t count = within(range, part(member).count()).count();
        if (count == 0) continue;
        copy_shared(to + size_bytes(member * chunk_elements_),
                    in_at(part(member).begin + range.begin), size_bytes(count));
      }
      return;
    case OperationKind::all_gather:
    case OperationKind::gather:
    case OperationKind::broadcast:
    case OperationKind::scatter:
    case OperationKind::all_to_all:
    case OperationKind::message:
    case OperationKind::barrier:
      return stage(chunk, half);
  }
}

/// This member's share of what its host folds: of each subtree on this host the same elements.
void Transfer::fold_here(std::uint64_t chunk, std::uint64_t half) const {
  const HostLayout& hosts = *members_->hosts;
  const Range range = chunk_range(chunk);
  const int team = hosts.team.size();
  const auto fold_range = [&](std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    for (std::size_t s = 0; s < subtrees().all.size(); ++s) {
      const HostSubtree& subtree = subtrees().all[s];
      if (subtree.host != hosts.here || subtree.is_leaf()) continue;
      std::vector<const void*> sources;
      for (auto member = subtree.begin; member < subtree.end; ++member) {
        sources.push_back(control_->staging(static_cast<int>(member), half) + size_bytes(begin));
      }
      void* const destination = place_of(subtree, half) + size_bytes(begin);
      fold_values({.program = &subtrees().within[s],
                   .sources = sources,
                   .destinations = {&destination, 1},
                   .count = count},
                  {});
    }
  };
  if (kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce) {
    const Range own = cut({0, range.count()}, hosts.team.rank, team);
    fold_range(own.begin, own.count());
  }
  if (kind_ == OperationKind::reduce_scatter) {
    const auto [first, last] = share_of(members_->size, hosts.team.rank, team);
    for (auto member = first; member < last; ++member) {
      fold_range(member * chunk_elements_,
                 within(range, part(static_cast<int>(member)).count()).count());
    }
  }
}

void Transfer::visit_nodes(std::uint64_t chunk, std::uint64_t half, int from, int to,
                           const Visit& visit) const {
  const HostLayout& hosts = *members_->hosts;
  const Range range = chunk_range(chunk);
  const auto host_of = [&](int member) { return hosts.host_of[static_cast<std::size_t>(member)]; };
  const auto give = [&](std::byte* at, std::int64_t begin, std::int64_t count) {
    if (count > 0) visit({at + size_bytes(begin), size_bytes(count)});
  };
  const auto give_subtrees = [&](std::int64_t begin, std::int64_t count) {
    for (const auto& subtree : subtrees().all) {
      if (subtree.host == from) give(place_of(subtree, half), begin, count);
    }
  };
  switch (kind_) {
    case OperationKind::all_reduce:
    case OperationKind::reduce: {
      const Range slice = cut({0, range.count()}, to, hosts.hosts);
      return give_subtrees(slice.begin, slice.count());
    }
    case OperationKind::reduce_scatter:
      for (int member = 0; member < members_->size; ++member) {
        if (host_of(member) == to) {
          give_subtrees(member * chunk_elements_, within(range, part(member).count()).count());
        }
      }
      return;
    case OperationKind::gather:
      if (host_of(root_) != to) return;
      [[fallthrough]];
    case OperationKind::all_gather:
      for (int member = 0; member < members_->size; ++member) {
        if (host_of(member) != from) continue;
        give(control_->staging(member, half), 0, within(range, part(member).count()).count());
      }
      return;
    case OperationKind::scatter:
    case OperationKind::all_to_all:
      for (int giver = 0; giver < members_->size; ++giver) {
        if (!gives(giver) || host_of(giver) != from) continue;
        for (int taker = 0; taker < members_->size; ++taker) {
          if (host_of(taker) != to) continue;
          give(control_->staging(giver, half), taker * chunk_elements_,
               within(range, given(giver, taker).count()).count());
        }
      }
      return;
    case OperationKind::broadcast:
      if (host_of(root_) == from) {
        give(control_->staging(root_, half), 0, range.count());
      }
      return;
    case OperationKind::message:
    case OperationKind::barrier:
      return;
  }
}

void Transfer::visit_sums(std::uint64_t chunk, std::uint64_t half, int from, int to,
                          const Visit& visit) const {
  if (kind_ == OperationKind::reduce &&
      members_->hosts->host_of[static_cast<std::size_t>(root_)] != to) {
    return;
  }
  if (kind_ != OperationKind::all_reduce && kind_ != OperationKind::reduce) return;
  const Range slice = cut({0, chunk_range(chunk).count()}, from, members_->hosts->hosts);
  if (slice.count() > 0) {
    visit({sums_of(from, half) + size_bytes(slice.begin), size_bytes(slice.count())});
  }
}

/// Folds `count` elements, from `begin` of a chunk's memory on, of what all hosts have.
void Transfer::fold_subtrees(std::uint64_t half, std::int64_t begin, std::int64_t count,
                             void* destination) const {
  const HostSubtrees& trees = subtrees();
  std::vector<const void*> sources;
  for (const auto& subtree : trees.all) {
    sources.push_back(place_of(subtree, half) + size_bytes(begin));
  }
  fold_values({.program = &trees.program,
               .divisor = divisor_of(reduction_, members_->size),
               .sources = sources,
               .destinations = {&destination, 1},
               .count = count},
              trees.present);
}

void Transfer::sum_for_hosts(std::uint64_t chunk, std::uint64_t half) const {
  const HostLayout& hosts = *members_->hosts;
  const Range range = chunk_range(chunk);
  if (kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce) {
    const Range slice = cut({0, range.count()}, hosts.here, hosts.hosts);
    const Range own = cut(slice, hosts.team.rank, hosts.team.size());
    if (own.count() == 0) return;
    fold_subtrees(half, own.begin, own.count(), sums_of(hosts.here, half) + size_bytes(own.begin));
  }
  if (kind_ == OperationKind::reduce_scatter) {
    const std::int64_t count = within(range, part(members_->rank).count()).count();
    if (count == 0) return;
    fold_subtrees(half, members_->rank * chunk_elements_, count, out_at(range.begin));
  }
}

void Transfer::collect_from_hosts(std::uint64_t chunk, std::uint64_t half) const {
  const HostLayout& hosts = *members_->hosts;
  const Range range = chunk_range(chunk);
  switch (kind_) {
    case OperationKind::reduce:
      if (members_->rank != root_) return;
      [[fallthrough]];
    case OperationKind::all_reduce:
      for (int host = 0; host < hosts.hosts; ++host) {
        const Range slice = cut({0, range.count()}, host, hosts.hosts);
        if (slice.count() == 0) continue;
        copy_shared(out_at(range.begin + slice.begin),
                    sums_of(host, half) + size_bytes(slice.begin), size_bytes(slice.count()));
      }
      return;
    case OperationKind::all_gather:
    case OperationKind::gather:
    case OperationKind::broadcast:
    case OperationKind::scatter:
    case OperationKind::all_to_all:
      return work(chunk, half);
    case OperationKind::reduce_scatter:
    case OperationKind::message:
    case OperationKind::barrier:
      return;
  }
}

}  // namespace tutti
