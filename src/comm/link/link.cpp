#include "comm/link/link.h"

#include <utility>

#include "base/check.h"

namespace tutti {

Link::Link(int self, int peers, int lanes) : self_(self), peers_(peers), lanes_(lanes) {
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
  post_send(lane, peer, bytes, std::move(done));
}

void Link::receive(int lane, int peer, std::span<std::byte> bytes, Done done) {
  check(lane, peer);
  post_receive(lane, peer, bytes, std::move(done));
}

bool Link::progress(Deadline) { return false; }

}  // namespace tutti
