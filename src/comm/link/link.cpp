#include "comm/link/link.h"

#include <utility>

#include "base/check.h"

namespace tutti {

Link::Link(int self, int peers, int lanes)
    : self_(self), peers_(peers), lanes_(lanes), counters_(new Counters[peers]) {
  TUTTI_CHECK(peers >= 1 && self >= 0 && self < peers && lanes >= 1, "peer {} of {}, {} lanes",
              self, peers, lanes);
}

Link::~Link() = default;

void Link::check(int lane, int peer) const {
  TUTTI_CHECK(lane >= 0 && lane < lanes_, "lane {} of {}", lane, lanes_);
  TUTTI_CHECK(peer >= 0 && peer < peers_ && peer != self_, "peer {} of {}, from {}", peer, peers_,
              self_);
}

void Link::send(int lane, int peer, std::span<const std::byte> bytes, Done done) {
  check(lane, peer);
  counters_[peer].messages_sent.fetch_add(1, std::memory_order_relaxed);
  counters_[peer].bytes_sent.fetch_add(bytes.size(), std::memory_order_relaxed);
  post_send(lane, peer, bytes, std::move(done));
}

void Link::receive(int lane, int peer, std::span<std::byte> bytes, Done done) {
  check(lane, peer);
  counters_[peer].messages_received.fetch_add(1, std::memory_order_relaxed);
  counters_[peer].bytes_received.fetch_add(bytes.size(), std::memory_order_relaxed);
  post_receive(lane, peer, bytes, std::move(done));
}

bool Link::progress(Deadline) { return false; }

LinkTraffic Link::traffic(int peer) const {
  const auto& of = counters_[peer];
  return {of.messages_sent.load(), of.bytes_sent.load(), of.messages_received.load(),
          of.bytes_received.load()};
}

}  // namespace tutti
