#include "comm/link/tcp_mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <span>
#include <string>

#include <fmt/format.h>

#include "job/hosts/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::uint32_t kMagic = 0x4b4c5454;
using Secret = std::array<std::uint64_t, 2>;

/// The first bytes of a connection.
struct Greeting {
  std::uint32_t magic = kMagic;
  std::int32_t peer = 0;
  std::int32_t lane = 0;
  std::uint32_t unused = 0;
  Secret secret{};  ///< that of the peer that is greeted
};

/// Where a peer listens; what it tells the others.
struct Place {
  std::string address;
  int port = 0;
  Secret secret{};

  std::string text() const {
    return fmt::format("{} {:x} {:x} {}", port, secret[0], secret[1], address);
  }
};

Place place_of(const std::string& text, int peer) {
  Place place;
  unsigned long long first = 0;
  unsigned long long second = 0;
  int read = 0;
  if (std::sscanf(text.c_str(), "%d %llx %llx %n", &place.port, &first, &second, &read) != 3) {
    throw Corrupt(fmt::format("peer {} of a link tells no place where it listens", peer));
  }
  place.secret = {first, second};
  place.address = text.substr(static_cast<std::size_t>(read));
  return place;
}

Secret new_secret() {
  Secret secret;
  if (::getrandom(&secret, sizeof secret, 0) != sizeof secret) {
    throw IoError(errno, fmt::format("no random numbers for a link: {}", error_text(errno)));
  }
  return secret;
}

/// A connection on its way to a peer that listens.
struct Outgoing {
  FileDescriptor socket;
  int peer = 0;
  int lane = 0;
};

/// A connection that has not yet told whose it is.
struct Incoming {
  FileDescriptor socket;
  Greeting greeting;
  std::size_t got = 0;
};

class Mesh {
 public:
  explicit Mesh(const LinkRequest& request)
      : request_(request),
        listener_(listen_on(request.address, 0, "a link between hosts")),
        sockets_(static_cast<std::size_t>(request.peers * request.lanes)) {
    mine_ = {request.address, own_address(listener_).port(), new_secret()};
  }

  /// Connects to the peers before this one, whether they already accept or not. Once all peers have
  /// done so, what waits at this one is accepted.
  std::vector<FileDescriptor> connect() {
    const auto places = request_.exchange(mine_.text());
    for (int peer = 0; peer < request_.self; ++peer) {
      begin(peer, place_of(places[static_cast<std::size_t>(peer)], peer));
    }
    while (!outgoing_.empty()) look();
    request_.exchange(
        "");  // which ends where a peer dies; every connection is in its listener's queue
    while (missing_ > 0) look();
    return std::move(sockets_);
  }

 private:
  FileDescriptor& at(int peer, int lane) {
    return sockets_[static_cast<std::size_t>(peer * request_.lanes + lane)];
  }

  void begin(int peer, const Place& place) {
    places_.push_back(place);
    std::string problem;
    const auto addresses = resolve(place.address, place.port, problem);
    if (addresses.empty()) throw IoError(0, problem);
    for (int lane = 0; lane < request_.lanes; ++lane) {
      auto socket = begin_connection(addresses.front(), nullptr);
      if (!socket) fail(peer, errno);
      outgoing_.push_back({std::move(socket), peer, lane});
    }
  }

  [[noreturn]] void fail(int peer, int code) const {
    const auto& place = places_[static_cast<std::size_t>(peer)];
    throw IoError(code, fmt::format("a link between hosts cannot reach {}: {}",
                                    tcp_text(place.address, place.port), error_text(code)));
  }

  void look() {
    std::vector<pollfd> watched;
    const auto watch = [&](const FileDescriptor& socket, int events) {
      watched.push_back({socket.get(), static_cast<short>(events), 0});
    };
    for (const auto& each : outgoing_) watch(each.socket, POLLOUT);
    for (const auto& each : incoming_) watch(each.socket, POLLIN);
    watch(listener_, POLLIN);
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(request_.deadline.at - Clock::now());
    if (left.count() <= 0) {
      throw Timeout(
          fmt::format("a link between hosts was not made in time: {} connections to, and "
                      "{} from other hosts are missing",
                      outgoing_.size(), missing_));
    }
    constexpr std::chrono::milliseconds kLongest{1000};
    const int ready =
        ::poll(watched.data(), watched.size(), static_cast<int>(std::min(left, kLongest).count()));
    if (ready <= 0) return;
    auto event = watched.begin();
    std::erase_if(outgoing_, [&](Outgoing& each) { return event++->revents != 0 && greet(each); });
    incoming_.remove_if([&](Incoming& each) { return event++->revents != 0 && hear(each); });
    if (event->revents != 0) accept();
  }

  /// The connection is there, or failed.
  bool greet(Outgoing& to) {
    if (const int code = connection_error(to.socket); code != 0) fail(to.peer, code);
    const Greeting greeting{.peer = request_.self,
                            .lane = to.lane,
                            .secret = places_[static_cast<std::size_t>(to.peer)].secret};
    const auto sent = ::send(to.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(sizeof greeting)) fail(to.peer, sent < 0 ? errno : EIO);
    at(to.peer, to.lane) = std::move(to.socket);
    return true;
  }

  /// True once the connection is a peer's, or known to be a stranger's, who is hung up on.
  bool hear(Incoming& from) {
    auto* const begin = reinterpret_cast<std::byte*>(&from.greeting);
    const auto got =
        ::recv(from.socket.get(), begin + from.got, sizeof from.greeting - from.got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    from.got += static_cast<std::size_t>(got);
    if (from.got < sizeof from.greeting) return false;
    const auto& told = from.greeting;
    const bool is_ours = told.magic == kMagic && told.secret == mine_.secret &&
                         told.peer > request_.self && told.peer < request_.peers &&
                         told.lane >= 0 && told.lane < request_.lanes && !at(told.peer, told.lane);
    if (is_ours) {
      at(told.peer, told.lane) = std::move(from.socket);
      --missing_;
    }
    return true;
  }

  void accept() {
    for (TcpAddress from;;) {
      auto socket = accept_from(listener_, from);
      if (!socket) return;
      incoming_.push_back({std::move(socket), {}, 0});
    }
  }

  const LinkRequest& request_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> sockets_;
  Place mine_;
  std::vector<Place> places_;  ///< of the peers before this one
  std::vector<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
  int missing_ = (request_.peers - 1 - request_.self) * request_.lanes;
};

}  // namespace

std::vector<FileDescriptor> connect_mesh(const LinkRequest& request) {
  return Mesh(request).connect();
}

}  // namespace tutti
