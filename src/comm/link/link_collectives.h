#pragma once

// What is made of a link's sends and receives, once for all engines: all-to-all, broadcast, a wait
// for one operation, and the exchange that proves a new link.
//
// Threads: as of the link. Failure: a Done that reports the first error, after all parts have
// ended; self_test() throws.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "comm/link/link.h"

namespace tutti {

/// Part p of `out` goes to peer p, part p of `in` comes from there; both have peers() parts, which
/// may have no bytes. The own part is copied. Sizes agree: out[q] of p with in[p] of q. Every peer
/// sends to the one after it first, so that no peer is everybody's first. Memory as in Link; the
/// lists themselves are read before the call returns.
void all_to_all(Link& link, int lane, std::span<const std::span<const std::byte>> out,
                std::span<const std::span<std::byte>> in, Link::Done done);

/// The bytes of `root` come to all; of the same size on all. The root sends to each directly: meant
/// for few bytes.
void broadcast(Link& link, int lane, int root, std::span<std::byte> bytes, Link::Done done);

/// A thread's wait for one operation:
///
///     PendingOperation sent;
///     link.send(lane, peer, bytes, sent.done());
///     if (!sent.wait(link, deadline)) …  // not complete in time: memory is still in use
///     if (const auto* error = sent.error()) …
class PendingOperation {
 public:
  /// To be given to one operation.
  Link::Done done();
  /// Whether the operation has ended by then. Calls progress() where the link needs it.
  bool wait(Link& link, Deadline deadline);
  /// Null before the end, and after success.
  const LinkError* error() const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable ended_or_not;
    bool ended = false;
    std::optional<LinkError> error;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Exchanges a few known bytes with every peer on every lane; all peers call it. Throws Timeout
/// naming the peers that have not answered, Mismatch where other bytes came than were sent,
/// IoError where the link fails.
void self_test(Link& link, Deadline deadline);

}  // namespace tutti
