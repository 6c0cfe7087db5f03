#include "apps/tutti/doctor/link_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/time.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <sstream>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"
#include "job/hosts/tcp_socket.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

constexpr int kPatience = 10;  // seconds
constexpr int kRoundTrips = 101;
constexpr std::chrono::seconds kSending{1};
constexpr std::size_t kPiece = std::size_t{1} << 18;

[[noreturn]] void fail(const std::string& what) {
  throw IoError(errno, fmt::format("{}: {}", what, error_text(errno)));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void wait_for(const FileDescriptor& socket, short events, const std::string& what) {
  pollfd polled{socket.get(), events, 0};
  if (::poll(&polled, 1, kPatience * 1000) > 0) return;
  errno = ETIMEDOUT;
  fail(what);
}

/// A socket that blocks, for as long as patience lasts.
void block(const FileDescriptor& socket) {
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  const timeval patience{kPatience, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

void send_all(const FileDescriptor& socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket.get(), at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) fail("the other host does not take what is sent");
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void receive_all(const FileDescriptor& socket, void* to, std::size_t bytes) {
  const ssize_t got = ::recv(socket.get(), to, bytes, MSG_WAITALL);
  if (got != static_cast<ssize_t>(bytes)) fail("the other host does not answer");
}

void send_for_a_while(const FileDescriptor& socket) {
  const std::vector<char> piece(kPiece);
  for (const auto begin = Clock::now(); Clock::now() - begin < kSending;)
    send_all(socket, piece.data(), piece.size());
  ::shutdown(socket.get(), SHUT_WR);
}

/// Bytes per second until the other side has sent all.
double receive_to_the_end(const FileDescriptor& socket) {
  std::vector<char> piece(kPiece);
  double bytes = 0;
  const auto begin = Clock::now();
  while (true) {
    const ssize_t got = ::recv(socket.get(), piece.data(), piece.size(), 0);
    if (got < 0) fail("the other host has stopped to send");
    if (got == 0) return bytes / seconds_since(begin);
    bytes += static_cast<double>(got);
  }
}

}  // namespace

void serve_probe(const std::string& address) {
  const auto listener = listen_on(address, 0);
  fmt::print("{}\n", own_address(listener).port());
  std::fflush(stdout);
  wait_for(listener, POLLIN, "no other host has connected");
  TcpAddress from;
  const auto socket = accept_from(listener, from);
  if (!socket) fail("the other host's connection is gone");
  block(socket);
  char byte = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    receive_all(socket, &byte, 1);
    send_all(socket, &byte, 1);
  }
  const double there = receive_to_the_end(socket);
  send_all(socket, &there, sizeof there);
  send_for_a_while(socket);
}

LinkFigures probe(const std::string& address, int port) {
  std::string problem;
  const auto where = tcp_text(address, port);
  const auto addresses = resolve(address, port, problem);
  if (addresses.empty()) throw IoError(0, problem);
  const auto socket = begin_connection(addresses.front(), nullptr);
  if (!socket) fail("cannot connect to " + where);
  wait_for(socket, POLLOUT, "cannot connect to " + where);
  errno = connection_error(socket);
  if (errno != 0) fail("cannot connect to " + where);
  block(socket);
  std::array<double, kRoundTrips> times{};
  for (double& time : times) {
    char byte = 0;
    const auto begin = Clock::now();
    send_all(socket, &byte, 1);
    receive_all(socket, &byte, 1);
    time = seconds_since(begin);
  }
  std::ranges::nth_element(times, times.begin() + kRoundTrips / 2);
  LinkFigures figures{.round_trip = times[kRoundTrips / 2]};
  send_for_a_while(socket);
  receive_all(socket, &figures.there, sizeof figures.there);
  figures.back = receive_to_the_end(socket);
  return figures;
}

std::string text_of(const LinkFigures& figures) {
  return fmt::format("link {} {} {}", figures.round_trip, figures.there, figures.back);
}

std::optional<LinkFigures> read_figures(const std::string& text) {
  std::istringstream words(text);
  std::string kind;
  LinkFigures figures;
  if (words >> kind >> figures.round_trip >> figures.there >> figures.back && kind == "link")
    return figures;
  return {};
}

}  // namespace tutti::command
