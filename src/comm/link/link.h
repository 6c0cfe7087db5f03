#pragma once

// A link moves bytes between hosts: point-to-point messages among a set of peers, one worker of
// each host. It never adds numbers, so that no bit of a result depends on the engine below it.
//
// Order: a link has independent lanes. On a lane, the k-th send of A to B goes to the k-th receive
// that B posts from A, whichever of the two is posted first. Nothing is ordered between lanes,
// between peers, or between the two directions.
// Memory: what a send reads and a receive fills stays valid, and untouched by others, until the
// operation's Done has been called. A send may stay open until its receive is posted. A send that
// is complete has left its memory; that it has arrived is known from the peer's own word alone.
// Threads: all functions may be called from any thread, from a Done too, except the destructor.
// Done is called exactly once per operation, without locks held, from a thread of the link or
// inside a call of this or another link of the process, maybe before send() or receive() returns.
// It must neither block nor throw.
// Failure: nothing here throws or blocks because of a peer. A peer is lost when its process or
// connection ends, or when a size differs: its open operations fail, and later ones at once. The
// others are not concerned. A peer that is silent is not lost: who has found it dead ends the link.
// A broken rule of the caller (a lane or peer that does not exist) is an InternalError.

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/deadline.h"

namespace tutti {

/// Why an operation did not complete.
struct LinkError {
  enum class Kind {
    kLost,  ///< the peer, or the connection to it
    /// The message of a receive has another size. The peer is lost then, to both sides.
    kMismatch,
    kClosed,  ///< this link is being destroyed
  };
  Kind kind = Kind::kLost;
  int peer = 0;
  std::string text;  ///< a sentence without the peer's rank in the job, which a link does not know
};

class Link {
 public:
  /// Null: the operation is complete. The error is valid during the call.
  using Done = std::function<void(const LinkError* error)>;

  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  /// Open operations fail with kClosed, those with silent peers too; their Dones have returned when
  /// this returns. The other peers lose this one. What was sent before is received, or fails.
  virtual ~Link();

  int self() const { return self_; }    ///< this participant among the peers
  int peers() const { return peers_; }  ///< the number of participants, this one included
  int lanes() const { return lanes_; }
  /// One line for a log: engine, addresses.
  virtual std::string description() const = 0;

  /// `peer` is another participant. Zero bytes are a message like any other.
  void send(int lane, int peer, std::span<const std::byte> bytes, Done done);
  /// The message must have exactly as many bytes; another number is kMismatch.
  void receive(int lane, int peer, std::span<std::byte> bytes, Done done);

  /// Whether operations advance only while somebody calls progress().
  virtual bool needs_progress() const { return false; }
  /// Advances operations until something has been completed (true) or the deadline has passed.
  /// Engines with threads of their own return false at once.
  virtual bool progress(Deadline deadline);

 protected:
  Link(int self, int peers, int lanes);
  virtual void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) = 0;
  virtual void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) = 0;

 private:
  void check(int lane, int peer) const;

  int self_;
  int peers_;
  int lanes_;
};

}  // namespace tutti
