#pragma once

// The rendezvous of workers that another launcher than `tutti run` has started on one host: the
// first of them serves a unix socket without a name in any file system, to which all connect.
//
// As long as the first has not ended, it is a Broker's rendezvous. After that all_gather() throws
// PeerLost of its rank, whichever ranks take part: no new group can be made.
//
// Threads: as SocketRendezvous, and on the first the broker's. Failure: see join_host().

#include <functional>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "job/hosts/host_order.h"
#include "job/wire/rendezvous.h"

namespace tutti {

/// The workers of this host, as those of the job know each other.
struct HostWorkers {
  std::string name;      ///< of at most 80 bytes, which no other job on this host uses meanwhile
  std::string launcher;  ///< what has started them, in errors
  int rank = 0;          ///< this worker's
  int size = 1;          ///< of the job
  int first = 0;         ///< the rank that serves the others of this host
  int here = 1;          ///< workers of this host; `first` looks at it where connect() fails
  /// Where there are several hosts: called on `first`, before it serves.
  std::function<BrokerHosts()> connect = {};
};

struct HostRendezvous {
  std::shared_ptr<Rendezvous> rendezvous;
  HostMap hosts;
  std::string run = {};  ///< identity of the run, of several hosts; else empty
};

/// Throws Timeout where the first worker does not serve the socket before the deadline, or another
/// process does, Mismatch where it serves another number of workers, and what `connect` throws:
/// there the others of the host throw an error of its class, within about a second.
HostRendezvous join_host(const HostWorkers& workers, Deadline deadline);

}  // namespace tutti
