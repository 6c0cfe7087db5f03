#include "job/hosts/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/file_descriptor.h"
#include "job/hosts/interfaces.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kMostWaiting = 1024;
/// A host without power is found by these, should nobody else look: after some 5 s.
constexpr int kProbeSeconds = 1;
constexpr int kProbes = 5;
constexpr int kUnansweredMs = 5000;

void set_option(const FileDescriptor& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof value);
}

/// Options only make it quicker: what the system refuses is done without.
void prepare(const FileDescriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
}

FileDescriptor open_tcp(int family) {
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket && errno != EAFNOSUPPORT)
    throw IoError(errno, fmt::format("cannot open a socket between hosts: {}", error_text(errno)));
  return socket;
}

std::string without_brackets(const std::string& address) {
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    return address.substr(1, address.size() - 2);
  return address;
}

}  // namespace

std::string tcp_text(const std::string& address, int port) {
  const auto bare = without_brackets(address);
  return bare.find(':') == std::string::npos ? fmt::format("{}:{}", bare, port)
                                             : fmt::format("[{}]:{}", bare, port);
}

int TcpAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

bool TcpAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  const auto ip = ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr);
  return ip >> 24 == 127;
}

std::string TcpAddress::text() const {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(get(), bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return tcp_text(host, port());
}

std::vector<TcpAddress> resolve(const std::string& address, int port, std::string& problem) {
  const auto name = without_brackets(address);
  if (name.empty()) throw InvalidArgument("the address of the hub is empty");
  if (port < 0 || port > 65535)
    throw InvalidArgument(
        fmt::format("the port of the hub {} is {}: must be 1 to 65535", address, port));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status == EAI_AGAIN || status == EAI_SYSTEM || status == EAI_MEMORY) {
    problem = fmt::format("the address of \"{}\" cannot be found out: {}", name,
                          status == EAI_SYSTEM ? error_text(errno) : ::gai_strerror(status));
    return {};
  }
  if (status != 0)
    throw InvalidArgument(
        fmt::format("no host is known as \"{}\": {}", name, ::gai_strerror(status)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<TcpAddress> all;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    TcpAddress& to = all.emplace_back();
    std::memcpy(&to.storage, each->ai_addr, each->ai_addrlen);
    to.bytes = each->ai_addrlen;
  }
  return all;
}

FileDescriptor listen_on(const std::string& address, int port, const std::string& who) {
  std::string problem;
  const auto addresses = resolve(address, port, problem);
  int code = EADDRNOTAVAIL;
  for (const TcpAddress& at : addresses) {
    FileDescriptor socket = open_tcp(at.storage.ss_family);
    if (!socket) continue;
    // The connections of an earlier attempt may still be in the kernel's books.
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at.storage.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (::bind(socket.get(), at.get(), at.bytes) == 0 && ::listen(socket.get(), kMostWaiting) == 0)
      return socket;
    code = errno;
    if (code == EADDRINUSE) break;
  }
  if (!problem.empty()) throw IoError(0, problem);
  const auto where = tcp_text(address, port);
  if (code == EADDRINUSE)
    throw IoError(code, fmt::format("{} cannot listen at {}: the port is in use, by another "
                                    "job or another program",
                                    who, where));
  if (code == EADDRNOTAVAIL)
    throw IoError(code, fmt::format("{} cannot listen at {}, which is no address of this "
                                    "host; these are: {}",
                                    who, where, interfaces_text()));
  throw IoError(code, fmt::format("{} cannot listen at {}: {}", who, where, error_text(code)));
}

FileDescriptor accept_from(const FileDescriptor& listener, TcpAddress& from) {
  from.bytes = sizeof from.storage;
  FileDescriptor socket(
      ::accept4(listener.get(), from.get(), &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) prepare(socket);
  return socket;
}

FileDescriptor begin_connection(const TcpAddress& to, const TcpAddress* from) {
  FileDescriptor socket = open_tcp(to.storage.ss_family);
  if (!socket) return {};
  prepare(socket);
  if (from != nullptr && ::bind(socket.get(), from->get(), from->bytes) != 0) return {};
  if (::connect(socket.get(), to.get(), to.bytes) != 0 && errno != EINPROGRESS) {
    const int code = errno;
    socket.reset();
    errno = code;
    return {};
  }
  return socket;
}

int connection_error(const FileDescriptor& socket) {
  int code = 0;
  socklen_t bytes = sizeof code;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &bytes) == 0 ? code : errno;
}

TcpAddress own_address(const FileDescriptor& socket) {
  TcpAddress own;
  ::getsockname(socket.get(), own.get(), &own.bytes);
  return own;
}

}  // namespace tutti
