#include "c10d/backend_link.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/helper_thread.h"
#include "c10d/backend_stream.h"
#include "comm/link/lost_peers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Direction = BackendStream::Direction;

/// A tag that no size has: the last word of a peer, why it takes no more part.
constexpr int kLastWordTag = 0x7fffffff;
using LastWord = std::array<char, 128>;

/// What has arrived from a peer whose connection has ended is received; what is open after this
/// will never end by itself.
constexpr std::chrono::milliseconds kGrace{50};

class BackendLink final : public Link {
 public:
  BackendLink(std::vector<c10::intrusive_ptr<c10d::Backend>> lanes, std::string engine, int self,
              int peers);
  ~BackendLink() override;

  std::string description() const override { return fmt::format("{}, {} lanes", engine_, lanes()); }

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    if (lost_.is_lost(peer)) return lost_.fail(peer, done);
    stream(lane, peer, Direction::kSend).send(bytes, std::move(done));
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    if (lost_.is_lost(peer)) return lost_.fail(peer, done);
    stream(lane, peer, Direction::kReceive).receive(bytes, std::move(done));
  }

 private:
  struct Peer {
    std::vector<std::unique_ptr<BackendStream>> streams;
    LastWord heard{};
    c10::intrusive_ptr<c10d::Work> hearing;
    std::thread listener;
    LastWord said{};
    c10::intrusive_ptr<c10d::Work> saying;
  };

  BackendStream& stream(int lane, int peer, Direction direction) {
    return *peers_[peer].streams[2 * lane + (direction == Direction::kReceive ? 1 : 0)];
  }
  void listen(int peer);
  void hear(int peer);
  void say(int peer, const std::string& text);
  void fail(const LinkError& error);
  void lose(int peer, const std::string& text);
  bool begin_to_lose(int peer, const std::string& text);
  void end_streams(int peer, const LinkError& error);

  const std::string engine_;
  std::vector<BackendLane> lanes_;
  std::vector<Peer> peers_;
  LostPeers lost_;

  std::mutex closing_mutex_;
  std::condition_variable closing_;
  bool is_closing_ = false;
};

BackendLink::BackendLink(std::vector<c10::intrusive_ptr<c10d::Backend>> lanes, std::string engine,
                         int self, int peers)
    : Link(self, peers, static_cast<int>(lanes.size())),
      engine_(std::move(engine)),
      lanes_(lanes.size()),
      peers_(peers),
      lost_(peers) {
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    lanes_[lane].backend = std::move(lanes[lane]);
  }
  for (int peer = 0; peer < peers; ++peer) {
    if (peer == self) continue;
    for (int lane = 0; lane < this->lanes(); ++lane) {
      for (const auto direction : {Direction::kSend, Direction::kReceive}) {
        peers_[peer].streams.push_back(
            std::make_unique<BackendStream>(lanes_[lane], lane, self, peer, direction,
                                            [this](const LinkError& error) { fail(error); }));
      }
    }
  }
  // After all streams are there: a peer may be lost from now on.
  for (int peer = 0; peer < peers; ++peer) {
    if (peer != self) listen(peer);
  }
}

BackendLink::~BackendLink() {
  {
    const std::lock_guard lock(closing_mutex_);
    is_closing_ = true;
    closing_.notify_all();
  }
  for (int peer = 0; peer < peers(); ++peer) {
    if (peer == self()) continue;
    if (!lost_.is_lost(peer)) say(peer, fmt::format("peer {} has closed its link", self()));
    end_streams(peer, {LinkError::Kind::kClosed, peer, "this link has been closed"});
    if (peers_[peer].hearing) abort_work(*peers_[peer].hearing);
  }
  for (auto& peer : peers_) {
    if (peer.listener.joinable()) peer.listener.join();
    peer.streams.clear();
  }
}

/// Waits for the last word of the peer, or for the end of the connection without one.
void BackendLink::listen(int peer) {
  auto& with = peers_[peer];
  try {
    with.hearing =
        post_work(lanes_[0], Direction::kReceive, reinterpret_cast<std::byte*>(with.heard.data()),
                  with.heard.size(), peer, kLastWordTag);
  } catch (...) {
    lose(peer, text_of_loss(peer));
    return;
  }
  with.listener = start_helper_thread("tutti link", [this, peer] { hear(peer); });
}

/// The listener's thread: it also ends what a lost peer leaves open.
void BackendLink::hear(int peer) {
  auto& with = peers_[peer];
  try {
    if (wait_for_work(*with.hearing)) {
      with.heard.back() = 0;
      begin_to_lose(peer, with.heard.data());
    }
  } catch (...) {
    begin_to_lose(peer, text_of_loss(peer));
  }
  std::unique_lock lock(closing_mutex_);
  if (closing_.wait_for(lock, kGrace, [this] { return is_closing_; })) return;
  lock.unlock();
  end_streams(peer, {LinkError::Kind::kLost, peer, "the connection has ended"});
}

/// Not waited for: a peer that cannot hear it sees the connection end.
void BackendLink::say(int peer, const std::string& text) {
  auto& with = peers_[peer];
  text.copy(with.said.data(), with.said.size() - 1);
  try {
    with.saying =
        post_work(lanes_[0], Direction::kSend, reinterpret_cast<std::byte*>(with.said.data()),
                  with.said.size(), peer, kLastWordTag);
  } catch (...) {  // there is no connection any more
  }
}

void BackendLink::fail(const LinkError& error) {
  if (error.text.empty()) return;  // by end(), whose caller knows why
  if (error.kind == LinkError::Kind::kMismatch) {
    if (begin_to_lose(error.peer, error.text)) say(error.peer, error.text);
    lose(error.peer, error.text);
  } else if (begin_to_lose(error.peer, error.text)) {
    abort_work(*peers_[error.peer].hearing);
  }
}

void BackendLink::lose(int peer, const std::string& text) {
  begin_to_lose(peer, text);
  end_streams(peer, {LinkError::Kind::kLost, peer, text});
  if (peers_[peer].hearing) abort_work(*peers_[peer].hearing);
}

/// Nothing new is posted. False: the peer was lost before.
bool BackendLink::begin_to_lose(int peer, const std::string& text) {
  if (!lost_.lose(peer, text)) return false;
  for (const auto& stream : peers_[peer].streams)
    stream->refuse({LinkError::Kind::kLost, peer, text});
  return true;
}

void BackendLink::end_streams(int peer, const LinkError& error) {
  for (const auto& stream : peers_[peer].streams) stream->end(error);
}

}  // namespace

std::unique_ptr<Link> make_backend_link(std::vector<c10::intrusive_ptr<c10d::Backend>> lanes,
                                        const std::string& engine) {
  if (lanes.empty()) throw InvalidArgument("a link needs at least one backend");
  for (const auto& backend : lanes) {
    if (!backend) throw InvalidArgument("a backend of a link is null");
    if (backend->getRank() == lanes[0]->getRank() && backend->getSize() == lanes[0]->getSize()) {
      continue;
    }
    throw InvalidArgument(fmt::format(
        "the backends of a link disagree: one has rank {} of {}, another one rank {} of {}",
        lanes[0]->getRank(), lanes[0]->getSize(), backend->getRank(), backend->getSize()));
  }
  const int self = lanes[0]->getRank();
  const int peers = lanes[0]->getSize();
  return std::make_unique<BackendLink>(std::move(lanes), engine, self, peers);
}

}  // namespace tutti
