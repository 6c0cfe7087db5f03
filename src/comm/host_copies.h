#pragma once

// Memory of which every host has a copy, where a group is on several: what members of one host
// write there is sent to the others over a link (host_link.h). On one host nothing has to be done.
//
// Threads: one; the link's own threads count what has come. Failure: that of collectives, and of
// the link.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/host_link.h"
#include "job/wire/rank_set.h"
#include "tutti/group.h"

namespace tutti {

/// Memory in a block of Group::allocate_common(), which is right on the host of one member.
struct HostPiece {
  int member = 0;  ///< rank in the group
  std::byte* at = nullptr;
  std::size_t bytes = 0;
};
/// Gives each piece, on all hosts, the values that it has on its member's. Collective, alike on
/// all; all of a host's members have the same memory there. Nothing is overwritten before all have
/// come, and all have everything when it returns.
void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options = {});
/// The same for one piece that is right on the host of rank 0.
void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options = {});

/// Pieces on their way over a link, each from its host to every other one. The first member of each
/// host drives it, and tells those of its host when all have come. Neither failure nor waiting is
/// its business: HostLink::check(), and drop() before memory of pieces is let go.
class PostedPieces {
 public:
  /// Keeps references.
  PostedPieces(const GroupState& state, HostLink& link, int lane);

  /// Alike on all hosts.
  void post(std::span<const HostPiece> pieces);
  /// All have left, and come.
  bool are_done() const { return !open_.any(); }
  /// The first workers of hosts to or from which some are on their way.
  RankSet missing() const;
  /// The link was dropped, and with it all that was under way.
  void forget() { open_.forget(); }

 private:
  const GroupState& state_;
  HostLink& link_;
  int lane_;
  OpenMessages open_;
};

/// The way of copy_to_hosts(), of one group.
class HostCopies {
 public:
  explicit HostCopies(GroupState& state) : state_(state) {}
  void copy(const Group& group, std::span<const HostPiece> pieces,
            const CollectiveOptions& options);

 private:
  void send_and_receive(std::span<const HostPiece> pieces, const CollectiveOptions& options);

  GroupState& state_;
  std::unique_ptr<PostedPieces> pieces_;
};

}  // namespace tutti
