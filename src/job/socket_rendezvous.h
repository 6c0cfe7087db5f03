#pragma once

// The asking side of a Broker, over the inherited socket. Peer credentials are checked: the other
// end must belong to the same user.
//
// When the broker's end hangs up (the launcher was killed), the worker ends itself at once: nobody
// is left to end it.

#include <memory>

#include "job/rendezvous.h"

namespace tutti {

/// `rank` of `size`, over the socket `fd`. BadInput when fd is no such socket.
std::unique_ptr<Rendezvous> connect_to_broker(FileDescriptor socket, int rank, int size);

}  // namespace tutti
