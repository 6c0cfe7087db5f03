#pragma once

// The link over TCP: a connection for each lane to each other peer, and one thread of the link.
// Needs no library; the engine where a program brings none.
//
// Threads: any. Failure: as of Link. A peer is lost when one of its connections ends; what it sent
// before may then be lost, too.

#include <memory>
#include <string>

#include "comm/link/link.h"
#include "comm/link/link_request.h"

namespace tutti {

/// Collective. Each peer listens at its address while the link is made, at any free port. Throws
/// IoError where an address is not this host's or a peer cannot be reached, and what the request's
/// exchange and self_test() throw.
std::unique_ptr<Link> make_tcp_link(const LinkRequest& request);

LinkEngine tcp_link_engine(std::string reason);

}  // namespace tutti
