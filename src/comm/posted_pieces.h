#pragma once

// Pieces of memory on their way from each host of a group to the others.
//
// Threads: one; the link's own threads count what has come. Failure: none of its own.

#include <cstddef>
#include <span>

#include "comm/communicator.h"
#include "comm/host_link.h"

namespace tutti {

/// Memory in a block of Group::allocate_common(), which is right on the host of one member.
struct HostPiece {
  int member = 0;  ///< rank in the group
  std::byte* at = nullptr;
  std::size_t bytes = 0;
};

/// Pieces on their way over a link, each from its host to every other one. The first member of each
/// host drives it, and tells those of its host when all have come. Neither failure nor waiting is
/// its business: HostLink::check(), and drop() before memory of pieces is let go.
class PostedPieces {
 public:
  /// Keeps references.
  PostedPieces(const Communicator& group, HostLink& link, int lane);

  /// Alike on all hosts.
  void post(std::span<const HostPiece> pieces);
  /// All have left, and come.
  bool are_done() const { return !open_.any(); }
  /// The first workers of hosts to or from which some are on their way.
  RankSet missing() const;
  /// The link was dropped, and with it all that was under way.
  void forget() { open_.forget(); }

 private:
  const Communicator& group_;
  HostLink& link_;
  int lane_;
  OpenMessages open_;
};

}  // namespace tutti
