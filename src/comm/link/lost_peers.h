#pragma once

// Which peers of a link are lost, and why: the same for every engine with threads of its own.
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

  /// False: the peer was lost before.
  bool lose(int peer, const std::string& text);
  bool is_lost(int peer) const { return peers_[peer].is_lost; }
  /// The text that a lost peer was lost with.
  std::string why(int peer) const;
  /// Ends an operation with a lost peer.
  void fail(int peer, const Link::Done& done) const;

 private:
  struct Peer {
    std::atomic<bool> is_lost{false};
    std::string why;
  };
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
};

}  // namespace tutti
