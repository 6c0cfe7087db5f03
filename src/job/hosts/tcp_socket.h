#pragma once

// Addresses and sockets between hosts.
//
// Threads: any. Failure: Error classes as told; what may pass is left to the caller as a reason.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace tutti {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int port() const;
  bool is_loopback() const;
  /// "10.0.0.1:29500", "[fe80::1%eth0]:29500".
  std::string text() const;
};

/// "10.0.0.1:29500", "[::1]:29500".
std::string tcp_text(const std::string& address, int port);

/// What `address`, which may be a name, stands for. Throws InvalidArgument where nobody knows it;
/// empty, with `problem` filled in, where the system cannot tell now.
std::vector<TcpAddress> resolve(const std::string& address, int port, std::string& problem);

/// A non-blocking, listening socket; `who` wants it, in errors.
FileDescriptor listen_on(const std::string& address, int port, const std::string& who = "the hub");
/// The next connection; empty where none waits, or errno tells why it cannot be had.
FileDescriptor accept_from(const FileDescriptor& listener, TcpAddress& from);

/// A non-blocking socket whose connection is being made; empty, with errno, where that fails at
/// once. `from`: where it starts; nullptr for the system's choice.
FileDescriptor begin_connection(const TcpAddress& to, const TcpAddress* from);
/// errno of a connection that was being made, once the socket can be written to.
int connection_error(const FileDescriptor& socket);
/// The address that the socket has on this side.
TcpAddress own_address(const FileDescriptor& socket);

}  // namespace tutti
