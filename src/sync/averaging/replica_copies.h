#pragma once

// The parameters that each logical worker has for itself, and their optimizer state: L copies per
// host, in memory that all workers share. The first logical worker's lie in the model itself. On
// several hosts a copy is right where ReplicaHosts has it, until it is brought to the others.
//
// Threads: the memory is synchronised by the step protocol. Failure: OutOfMemory when it does
// not fit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/host_copies.h"
#include "sync/averaging/replica_hosts.h"
#include "sync/plan/plan.h"
#include "sync/update/shared_model.h"
#include "tutti/group.h"

namespace tutti {

class ReplicaCopies {
 public:
  /// Copies the plan's per-replica parameters, with `states[p]` tensors of state each. Keeps
  /// references. Collective.
  ReplicaCopies(const Group& group, const Plan& plan, const SharedModel& first,
                std::vector<int> states, std::size_t logical_workers, const std::string& name,
                ReplicaHosts hosts = {});

  const std::vector<std::uint32_t>& parameters() const { return parameters_; }
  std::size_t size() const { return others_.size() + 1; }
  const SharedModel& of(std::size_t logical) const {
    return logical == 0 ? first_ : *others_[logical - 1];
  }
  /// The values and the state of all logical workers become the first one's.
  void spread(std::uint32_t parameter) const;
  const ReplicaHosts& hosts() const { return hosts_; }
  /// The copies of these logical workers are right on all hosts. Collective.
  void bring(std::span<const std::size_t> logical) const;
  /// The same where all but the first one are right on the host of rank 0 alone.
  void bring_from_first_rank() const;
  /// Bytes that each logical worker but the first adds.
  std::size_t bytes() const { return others_.empty() ? 0 : others_.front()->bytes(); }

 private:
  void add_pieces(std::vector<HostPiece>& pieces, std::size_t logical, int member) const;
  void bring(std::span<const HostPiece> pieces) const;

  Group group_;
  ReplicaHosts hosts_;
  const Plan& plan_;
  const SharedModel& first_;
  std::vector<std::uint32_t> parameters_;
  std::vector<std::unique_ptr<SharedModel>> others_;
};

/// The same, with kNotHere for parameters that are not per replica.
std::vector<int> states_of_replicas(const Plan& plan, std::vector<int> states);

}  // namespace tutti
