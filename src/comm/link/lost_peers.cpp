#include "comm/link/lost_peers.h"

namespace tutti {

bool LostPeers::lose(int peer, const std::string& text) {
  const std::lock_guard lock(mutex_);
  auto& with = peers_[peer];
  if (with.is_lost) return false;
  with.why = text;
  with.is_lost = true;
  return true;
}

std::string LostPeers::why(int peer) const {
  const std::lock_guard lock(mutex_);
  return peers_[peer].why;
}

void LostPeers::fail(int peer, const Link::Done& done) const {
  const LinkError error{LinkError::Kind::kLost, peer, why(peer)};
  done(&error);
}

}  // namespace tutti
