#include "comm/link/tcp_link.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/helper_thread.h"
#include "comm/link/link_collectives.h"
#include "comm/link/lost_peers.h"
#include "comm/link/tcp_mesh.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr const char* kEnded = "its process or connection has ended";

/// A message on its way: its size goes before it.
struct Message {
  std::uint64_t size = 0;  ///< as sent; that of a receive is its memory's
  std::byte* bytes = nullptr;
  Link::Done done;
};

/// A connection. The messages of each direction move one after another.
struct Stream {
  FileDescriptor socket;
  int peer = 0;
  int lane = 0;
  std::mutex mutex;
  std::deque<Message> sends;
  std::deque<Message> receives;
  std::uint64_t sent = 0;      ///< bytes of the first send, its size included
  std::uint64_t received = 0;  ///< bytes of the first receive
  std::uint64_t header = 0;    ///< the size that has come, or a part of it
  std::uint32_t watched = 0;   ///< events that the link's thread waits for
  bool has_ended = false;
};

/// What is called without locks held.
struct Outcome {
  std::vector<Link::Done> complete;
  std::optional<LinkError> loss;  ///< of the peer
  Link::Done mismatched;          ///< the receive that found it, where sizes differ
};

class TcpLink final : public Link {
 public:
  TcpLink(const LinkRequest& request, std::vector<FileDescriptor> sockets);
  ~TcpLink() override;

  std::string description() const override { return "tcp on " + address_; }

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    post(lane, peer, &Stream::sends,
         {bytes.size(), const_cast<std::byte*>(bytes.data()), std::move(done)});
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    post(lane, peer, &Stream::receives, {bytes.size(), bytes.data(), std::move(done)});
  }

 private:
  Stream& stream_of(int peer, int lane) {
    return streams_[static_cast<std::size_t>(peer * lanes() + lane)];
  }
  void post(int lane, int peer, std::deque<Message> Stream::*queue, Message message);
  void run();
  void advance(Stream& stream, std::uint32_t events);
  static void advance_send(Stream& stream, Outcome& outcome);
  static void advance_receive(Stream& stream, Outcome& outcome);
  void watch(Stream& stream, int operation);
  void settle(Outcome& outcome);
  void end_peer(const LinkError& error);
  void end(Stream& stream, const LinkError& error);

  const std::string address_;
  LostPeers lost_;
  std::vector<Stream> streams_;  ///< by peer and lane
  FileDescriptor poll_;
  FileDescriptor stop_;
  std::thread thread_;
};

TcpLink::TcpLink(const LinkRequest& request, std::vector<FileDescriptor> sockets)
    : Link(request.self, request.peers, request.lanes),
      address_(request.address),
      lost_(request.peers),
      streams_(sockets.size()),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!poll_ || !stop_) throw IoError(errno, fmt::format("a link over TCP: {}", error_text(errno)));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, stop_.get(), &event);
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    auto& stream = streams_[i];
    stream.peer = static_cast<int>(i) / lanes();
    stream.lane = static_cast<int>(i) % lanes();
    stream.socket = std::move(sockets[i]);
    if (stream.socket) watch(stream, EPOLL_CTL_ADD);
  }
  thread_ = start_helper_thread("tutti link", [this] { run(); });
}

TcpLink::~TcpLink() {
  const std::uint64_t one = 1;
  static_cast<void>(::write(stop_.get(), &one, sizeof one));
  thread_.join();
  for (auto& stream : streams_) {
    if (stream.socket) end(stream, {LinkError::Kind::kClosed, stream.peer, "this link has ended"});
  }
}

/// Tells the link's thread what to wait for: with the mutex held, or before there is a thread.
void TcpLink::watch(Stream& stream, int operation) {
  const std::uint32_t wanted = EPOLLRDHUP | (stream.sends.empty() ? 0U : EPOLLOUT) |
                               (stream.receives.empty() ? 0U : EPOLLIN);
  if (operation == EPOLL_CTL_MOD && wanted == stream.watched) return;
  stream.watched = wanted;
  epoll_event event{.events = wanted, .data = {.ptr = &stream}};
  const int code = ::epoll_ctl(poll_.get(), operation, stream.socket.get(), &event);
  TUTTI_CHECK(code == 0, "epoll: {}", error_text(errno));
}

void TcpLink::post(int lane, int peer, std::deque<Message> Stream::*queue, Message message) {
  auto& stream = stream_of(peer, lane);
  Outcome outcome;
  std::unique_lock lock(stream.mutex);
  if (stream.has_ended || lost_.is_lost(peer)) {  // its other streams may be about to end
    lock.unlock();
    lost_.fail(peer, message.done);
    return;
  }
  (stream.*queue).push_back(std::move(message));
  if ((stream.*queue).size() == 1) {  // a first try saves small messages a change of threads
    queue == &Stream::sends ? advance_send(stream, outcome) : advance_receive(stream, outcome);
  }
  watch(stream, EPOLL_CTL_MOD);
  lock.unlock();
  settle(outcome);
}

void TcpLink::run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int ready = ::epoll_wait(poll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < ready; ++i) {
      const auto& event = events[static_cast<std::size_t>(i)];
      if (event.data.ptr == nullptr) return;
      advance(*static_cast<Stream*>(event.data.ptr), event.events);
    }
  }
}

/// In the link's thread.
void TcpLink::advance(Stream& stream, std::uint32_t events) {
  Outcome outcome;
  {
    const std::lock_guard lock(stream.mutex);
    if (stream.has_ended) return;
    const bool has_broken = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    // What the peer sent before it ended is received first.
    if (!stream.receives.empty() && (has_broken || (events & EPOLLIN) != 0)) {
      advance_receive(stream, outcome);
    } else if (has_broken) {
      outcome.loss = LinkError{LinkError::Kind::kLost, stream.peer, kEnded};
    }
    if (!outcome.loss && !stream.sends.empty() && (events & EPOLLOUT) != 0) {
      advance_send(stream, outcome);
    }
    watch(stream, EPOLL_CTL_MOD);
  }
  settle(outcome);
}

/// One call of the system: long messages take turns with those of other streams.
void TcpLink::advance_send(Stream& stream, Outcome& outcome) {
  auto& message = stream.sends.front();
  constexpr std::uint64_t kHeader = sizeof message.size;
  const auto header = std::min(stream.sent, kHeader);
  const auto body = stream.sent - header;
  std::array<iovec, 2> parts{
      {{reinterpret_cast<std::byte*>(&message.size) + header, kHeader - header},
       {message.bytes + body, message.size - body}}};
  const msghdr out{.msg_name = nullptr,
                   .msg_namelen = 0,
                   .msg_iov = parts.data(),
                   .msg_iovlen = parts.size(),
                   .msg_control = nullptr,
                   .msg_controllen = 0,
                   .msg_flags = 0};
  const auto sent = ::sendmsg(stream.socket.get(), &out, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    outcome.loss = LinkError{LinkError::Kind::kLost, stream.peer, kEnded};
    return;
  }
  stream.sent += static_cast<std::uint64_t>(sent);
  if (stream.sent < kHeader + message.size) return;
  outcome.complete.push_back(std::move(message.done));
  stream.sends.pop_front();
  stream.sent = 0;
}

void TcpLink::advance_receive(Stream& stream, Outcome& outcome) {
  auto& message = stream.receives.front();
  constexpr std::uint64_t kHeader = sizeof stream.header;
  const auto header = std::min(stream.received, kHeader);
  const auto body = stream.received - header;
  const std::array<iovec, 2> parts{
      {{reinterpret_cast<std::byte*>(&stream.header) + header, kHeader - header},
       {message.bytes + body, message.size - body}}};
  const auto got = ::readv(stream.socket.get(), parts.data(), parts.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    outcome.loss = LinkError{LinkError::Kind::kLost, stream.peer, kEnded};
    return;
  }
  stream.received += static_cast<std::uint64_t>(got);
  if (stream.received < kHeader) return;
  if (stream.header != message.size) {
    outcome.loss =
        LinkError{LinkError::Kind::kMismatch, stream.peer,
                  fmt::format("a message of {} bytes came on lane {} where {} bytes were expected",
                              stream.header, stream.lane, message.size)};
    outcome.mismatched = std::move(message.done);
    stream.receives.pop_front();
    return;
  }
  if (stream.received < kHeader + message.size) return;
  outcome.complete.push_back(std::move(message.done));
  stream.receives.pop_front();
  stream.received = 0;
}

/// Without locks held.
void TcpLink::settle(Outcome& outcome) {
  for (const auto& done : outcome.complete) done(nullptr);
  if (!outcome.loss) return;
  auto error = *outcome.loss;
  error.kind = LinkError::Kind::kLost;
  end_peer(error);
  if (outcome.mismatched) outcome.mismatched(&*outcome.loss);
}

void TcpLink::end_peer(const LinkError& error) {
  if (!lost_.lose(error.peer, error.text)) return;
  for (int lane = 0; lane < lanes(); ++lane) {
    end(stream_of(error.peer, lane), error);
  }
}

void TcpLink::end(Stream& stream, const LinkError& error) {
  std::deque<Message> open;
  {
    const std::lock_guard lock(stream.mutex);
    if (stream.has_ended) return;
    stream.has_ended = true;
    ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, stream.socket.get(), nullptr);
    ::shutdown(stream.socket.get(), SHUT_RDWR);
    open.swap(stream.sends);
    for (auto& message : stream.receives) open.push_back(std::move(message));
    stream.receives.clear();
  }
  for (const auto& message : open) message.done(&error);
}

}  // namespace

std::unique_ptr<Link> make_tcp_link(const LinkRequest& request) {
  auto link = std::make_unique<TcpLink>(request, connect_mesh(request));
  self_test(*link, request.deadline);
  return link;
}

LinkEngine tcp_link_engine(std::string reason) { return {"tcp", make_tcp_link, std::move(reason)}; }

}  // namespace tutti
