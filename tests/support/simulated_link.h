#pragma once

// Links of one process, over a network that does not exist: for tests of what runs between hosts,
// and for figures of networks that are not there.
//
// Immediate (default): no delays. A message is copied as soon as both sides have posted it, by the
// thread that posts last, which calls both Dones. needs_progress() is false.
// Modelled: a clock of its own and a queue of events. Each message leaves after those before it on
// the way between two peers (bandwidth), and takes latency and jitter. The clock advances only by
// step() and run_until_idle(), or, where participants are threads, when all of them wait in
// progress(). What happens is then a function of the options and of what each participant posts
// between two advances: real time, the order of threads and addresses decide nothing. Dones of a
// participant are called inside its progress(), or inside step().
// Dones of one participant are never called concurrently.
//
// Threads: any. Failure: as of Link; a wrong peer, or one that is taken, is an InternalError.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/link/link.h"

namespace tutti {

/// One direction between two peers.
struct SimulatedPath {
  std::chrono::nanoseconds latency{0};
  /// At most this much is added to the latency, drawn per message from the seed.
  std::chrono::nanoseconds jitter{0};
  double bytes_per_second = 0;  ///< 0: no limit
};

struct SimulatedOptions {
  int peers = 2;
  int lanes = 1;
  bool modelled = false;
  std::uint64_t seed = 0;
  SimulatedPath path = {};
  /// The topology, asked once per pair; `path` for all where it is absent.
  std::function<SimulatedPath(int from, int to)> path_of = {};
  /// Jitter may bring messages of one lane before earlier ones of another lane.
  bool lanes_overtake = false;
  /// Until the peers of one that has ended are told so.
  std::chrono::nanoseconds notice{0};
};

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(SimulatedOptions options);
  ~SimulatedNetwork();

  /// A participant's link, once for each. It may outlive this object.
  std::unique_ptr<Link> link(int peer);

  /// From now on the peer is dead, as by SIGKILL: its operations fail with kClosed, nothing that
  /// has not arrived arrives, the others lose it after `notice`.
  void kill(int peer);
  /// From now on nothing arrives from the peer or at it, and nobody is told: a cable, SIGSTOP.
  void silence(int peer);

  std::chrono::nanoseconds now() const;
  /// Calls `action` when the clock gets there; before messages of the same instant.
  void at(std::chrono::nanoseconds time, std::function<void()> action);
  /// The next event and the Dones it leads to. False: there is none.
  bool step();
  void run_until_idle();

  /// Messages and bytes that arrived at a receive.
  struct Delivered {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };
  Delivered delivered(int from, int to) const;

 private:
  class State;
  class Participant;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
