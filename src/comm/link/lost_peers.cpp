#include "comm/link/lost_peers.h"

#include <utility>

namespace tutti {

bool LostPeers::lose(int peer, const std::string& text) {
  const std::lock_guard lock(mutex_);
  auto& with = peers_[peer];
  if (with.is_lost) return false;
  with.why = text;
  with.is_lost = true;
  tell(peer);
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

void LostPeers::set_handler(Link::LostHandler handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) tell(static_cast<int>(peer));
}

/// With mutex_ held.
void LostPeers::tell(int peer) {
  auto& with = peers_[peer];
  const auto handler = handler_;
  if (!with.is_lost || with.is_told || !handler) return;
  with.is_told = true;
  handler(peer, with.why);
}

}  // namespace tutti
