#pragma once

// The rendezvous of workers that another launcher than `tutti run` has started on one host: rank 0
// serves a unix socket without a name in any file system, to which all connect.
//
// As long as rank 0 has not ended, it is a Broker's rendezvous. After that all_gather() throws
// PeerLost of rank 0, whichever ranks take part: no new group can be made.
//
// Threads: as SocketRendezvous, and on rank 0 the broker's. Failure: see join_host().

#include <memory>
#include <string>

#include "base/deadline.h"
#include "job/rendezvous.h"

namespace tutti {

/// `rank` of `size` workers that know the same `name`, of at most 80 bytes, which no other job on
/// this host uses at the same time. `launcher` names what has started them in errors. Throws
/// Timeout where rank 0 does not serve the socket before the deadline, or another process does,
/// and Mismatch where it serves another number of workers.
std::shared_ptr<Rendezvous> join_host(const std::string& name, const std::string& launcher,
                                      int rank, int size, Deadline deadline);

}  // namespace tutti
