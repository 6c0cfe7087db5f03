#pragma once

// Which peers of a link are lost, why, and who is told: the same for every engine with threads of
// its own.
//
// Threads: any. Failure: none.

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "comm/link/link.h"

namespace tutti {

class LostPeers {
 public:
  explicit LostPeers(int peers) : peers_(peers) {}

  /// Tells the handler before it returns; is_lost() is true then. False: the peer was lost before.
  bool lose(int peer, const std::string& text);
  bool is_lost(int peer) const { return peers_[peer].is_lost; }
  /// The text that a lost peer was lost with.
  std::string why(int peer) const;
  /// Ends an operation with a lost peer.
  void fail(int peer, const Link::Done& done) const;
  /// As Link::on_lost().
  void set_handler(Link::LostHandler handler);

 private:
  struct Peer {
    std::atomic<bool> is_lost{false};
    std::string why;
    bool is_told = false;
  };
  void tell(int peer);

  /// Held while the handler runs, so that none runs once it has been taken away; recursive because
  /// the handler may do so itself.
  mutable std::recursive_mutex mutex_;
  std::vector<Peer> peers_;
  Link::LostHandler handler_;
};

}  // namespace tutti
