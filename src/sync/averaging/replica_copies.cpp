#include "sync/averaging/replica_copies.h"

#include <fmt/format.h>

#include <cstring>

#include "sync/plan/fusion.h"

namespace tutti {

std::vector<int> states_of_replicas(const Plan& plan, std::vector<int> states) {
  for (std::size_t p = 0; p < states.size(); ++p) {
    if (!plan.parameters()[p].spec.is_per_replica) states[p] = kNotHere;
  }
  return states;
}

ReplicaCopies::ReplicaCopies(const Group& group, const Plan& plan, const SharedModel& first,
                             std::vector<int> states, std::size_t logical_workers,
                             const std::string& name, ReplicaHosts hosts)
    : group_(group),
      hosts_(std::move(hosts)),
      plan_(plan),
      first_(first),
      parameters_(per_replica_parameters(plan)) {
  const auto here = states_of_replicas(plan, std::move(states));
  for (std::size_t l = 1; l < logical_workers; ++l) {
    others_.push_back(std::make_unique<SharedModel>(group, plan, here, false,
                                                    fmt::format("{}, logical worker {}", name, l)));
  }
}

/// The first one's lie among what all have in common.
void ReplicaCopies::add_pieces(std::vector<HostPiece>& pieces, std::size_t logical,
                               int member) const {
  const auto& copy = of(logical);
  if (logical > 0) {
    pieces.push_back({member, copy.memory().data(), copy.bytes()});
    return;
  }
  for (const auto p : parameters_) {
    const auto& entry = plan_.parameters()[p];
    const auto values = static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype);
    pieces.push_back({member, copy.value(p), values});
    if (copy.master(p) != copy.value(p)) {
      pieces.push_back({member, copy.master(p), plan_.bytes_of(p)});
    }
    for (int k = 0; k < copy.states(p); ++k) {
      pieces.push_back({member, copy.state(p, k), plan_.bytes_of(p)});
    }
  }
}

void ReplicaCopies::bring(std::span<const HostPiece> pieces) const {
  copy_to_hosts(group_, pieces, {.label = "copies of logical workers"});
}

void ReplicaCopies::bring(std::span<const std::size_t> logical) const {
  if (!hosts_.differ()) return;
  std::vector<HostPiece> pieces;
  for (const auto l : logical) add_pieces(pieces, l, hosts_.home(l));
  bring(pieces);
}

void ReplicaCopies::bring_from_first_rank() const {
  if (!hosts_.differ()) return;
  std::vector<HostPiece> pieces;
  for (std::size_t l = 1; l < size(); ++l) add_pieces(pieces, l, 0);
  bring(pieces);
}

void ReplicaCopies::spread(std::uint32_t parameter) const {
  const auto& entry = plan_.parameters()[parameter];
  const auto values = static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype);
  if (values == 0) return;
  for (const auto& other : others_) {
    std::memcpy(other->value(parameter), first_.value(parameter), values);
    std::memcpy(other->master(parameter), first_.master(parameter), plan_.bytes_of(parameter));
    for (int k = 0; k < first_.states(parameter); ++k) {
      std::memcpy(other->state(parameter, k), first_.state(parameter, k),
                  plan_.bytes_of(parameter));
    }
  }
}

}  // namespace tutti
