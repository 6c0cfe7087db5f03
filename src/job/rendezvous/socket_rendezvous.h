#pragma once

// The asking side of a Broker, over the inherited socket. Peer credentials are checked: the other
// end must belong to the same user.
//
// When the end of a launcher's broker hangs up (the launcher was killed), the worker ends itself at
// once, whatever it is doing: one line to stderr, then _exit(kLauncherGoneStatus). No other process
// is left to end it. When that of a worker does, gathers throw PeerLost from then on.
//
// Threads: one inside; public functions from any thread.

#include <memory>
#include <string>

#include "job/wire/rendezvous.h"

namespace tutti {

/// Exit status of a worker that lost its launcher (EX_UNAVAILABLE of sysexits.h).
inline constexpr int kLauncherGoneStatus = 69;

/// Throws InvalidArgument when the other end of `socket` is no launcher of the same user.
void require_own_stream(int socket);

/// `rank` of `size`, over the socket `fd`. InvalidArgument when fd is no such socket.
std::unique_ptr<Rendezvous> connect_to_broker(FileDescriptor socket, int rank, int size);

/// The same where the first worker of the host has the broker, because `launcher` ("mpirun") has
/// none.
std::unique_ptr<Rendezvous> connect_to_first(FileDescriptor socket, const std::string& launcher,
                                             int first, int rank, int size);

}  // namespace tutti
