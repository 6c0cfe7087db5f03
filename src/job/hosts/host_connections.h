#pragma once

// How the hosts of a job find and trust one another. The host of rank 0, the hub, listens; each
// other host connects to it. Both prove by HMAC-SHA256 over fresh random numbers that they know the
// token, which is never sent; each message of the join carries such a proof. What comes after the
// join is neither authenticated nor encrypted: docs/clusters.md.
//
// All hosts that have reached the hub end alike: in the same list of hosts, or in an error of the
// same class and text. A stranger (another program, another token, another run, silence) is hung up
// on and holds nobody up.
//
// Threads: none inside; one caller at a time per object. Failure: of the join, see below. A name is
// looked up by the system's resolver, which has time limits of its own.

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"
#include "job/wire/rendezvous.h"

namespace tutti {

/// What a host tells the hub.
struct HostIntroduction {
  std::string run;              ///< which run this is; the hub's is taken where it is empty
  std::string token = {};       ///< the secret that all hosts share; not empty
  std::string name = {};        ///< for texts
  int size = 0;                 ///< workers of the job
  std::vector<int> ranks = {};  ///< job ranks on this host, ascending, at least one
  int attempt = 0;              ///< how often all workers have been started again
  std::string facts = {};       ///< has to be the same text on all hosts
};

/// A host of the job. Its socket is TCP, non-blocking, close-on-exec, without delay of small
/// messages; nothing of what comes after the join has been read from it.
struct HostConnection {
  FileDescriptor socket;  ///< empty where there is no connection between the two
  std::string name;
  std::vector<int> ranks;
};

/// The outcome of a join.
struct ConnectedHosts {
  std::string run;
  /// All hosts, in the order of their lowest ranks, so that the hub is the first. The hub has
  /// sockets to all others, each other host one to the hub.
  std::vector<HostConnection> hosts;
};

class HubListener {
 public:
  /// Listens at `address`, an IPv4 or IPv6 address or a name of this host, and at no other. Port 0
  /// is any free one. Throws InvalidArgument for an address that makes no sense, IoError where it
  /// is not this host's or the port is in use.
  HubListener(const std::string& address, int port);
  int port() const { return port_; }

  /// Waits for the hosts of all other ranks. `own` has rank 0. Throws
  ///   Timeout   that lists the ranks that are missing and the hosts that are there,
  ///   Mismatch  when sizes or facts of two hosts differ, or a rank is on two hosts,
  ///   PeerLost  of the lowest rank of a host that ends meanwhile.
  /// May be called again, for the next attempt. `patience`, where given, is asked many times a
  /// second: false ends the wait as the deadline does.
  ConnectedHosts accept_all(const HostIntroduction& own, Deadline deadline,
                            const Patience& patience = {});

 private:
  FileDescriptor socket_;
  std::string address_;  ///< "10.0.0.1:29500"
  int port_ = 0;
};

struct HubAddress {
  std::string address;  ///< IPv4, IPv6 or a name
  int port = 0;
  std::string from = {};  ///< address of this host to connect from; by default the system's choice
};

/// Connects to the hub, as often as it takes, and waits until it has all hosts. Throws what the hub
/// throws, and
///   InvalidArgument  for a name that nobody knows, or `from` that is no address of this host,
///   Timeout          where the hub cannot be reached,
///   Mismatch         where the hub has another token, another run or a later attempt, or what
///                    listens there is no hub,
///   PeerLost         of rank 0 when the hub ends meanwhile.
ConnectedHosts connect_to_hub(const HubAddress& hub, const HostIntroduction& own, Deadline deadline,
                              const Patience& patience = {});

}  // namespace tutti
