#pragma once

// The link over TCP: a connection for each lane to each other peer, and one thread of the link.
// Needs no library; the engine where a program brings none.
//
// Threads: any. Failure: as of Link. A peer is lost when one of its connections ends; what it sent
// before may then be lost, too.

#include <memory>
#include <string>

#include "base/deadline.h"
#include "comm/link/link.h"
#include "comm/link/link_engine.h"

namespace tutti {

struct TcpOptions {
  int self = 0;
  int peers = 1;
  int lanes = 1;
  std::string address;  ///< of this host: listens there while the link is made, at any free port
  Deadline deadline = {};
};

/// Collective; `exchange` as LinkRequest has it. Throws IoError where an address is not this host's
/// or a peer cannot be reached, and what `exchange` and self_test() throw.
std::unique_ptr<Link> make_tcp_link(const TcpOptions& options, const ExchangeBytes& exchange);

LinkEngine tcp_link_engine(std::string reason);

}  // namespace tutti
