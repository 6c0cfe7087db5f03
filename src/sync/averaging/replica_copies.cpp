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
                             const std::string& name)
    : plan_(plan), first_(first), parameters_(per_replica_parameters(plan)) {
  const auto here = states_of_replicas(plan, std::move(states));
  for (std::size_t l = 1; l < logical_workers; ++l) {
    others_.push_back(std::make_unique<SharedModel>(group, plan, here, false,
                                                    fmt::format("{}, logical worker {}", name, l)));
  }
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
