#pragma once

// What the links of one SimulatedNetwork share. Internal to simulated_link.cpp and
// simulated_state.cpp.
//
// Threads: functions lock; those named …_locked are called with the lock held. Dones are put into
// the mailbox of their participant, and called without the lock.

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "support/simulated_link.h"

namespace tutti {

class SimulatedNetwork::State {
 public:
  using Time = std::chrono::nanoseconds;

  explicit State(SimulatedOptions options);

  void attach(int peer);
  void detach(int peer);
  void send(int from, int to, int lane, std::span<const std::byte> bytes, Link::Done done);
  void receive(int to, int from, int lane, std::span<std::byte> bytes, Link::Done done);
  bool progress(int self, Deadline deadline);

  void kill(int peer);
  void silence(int peer);
  void at(Time time, std::function<void()> action);
  bool step();
  Time now() const;
  Delivered delivered(int from, int to) const;
  const SimulatedOptions& options() const { return options_; }

 private:
  struct Send {
    std::span<const std::byte> bytes;
    Link::Done done;
    std::uint64_t sequence = 0;
    bool arrived = false;
  };
  struct Receive {
    std::span<std::byte> bytes;
    Link::Done done;
  };
  /// One lane in one direction between two peers.
  struct Channel {
    std::deque<Send> sends;
    std::deque<Receive> receives;
    std::uint64_t posted = 0;
    Time last_arrival{0};
  };
  struct Direction {
    SimulatedPath path;
    Time busy_until{0};
    Time last_arrival{0};
    std::uint64_t posted = 0;
    Delivered delivered;
    std::vector<Channel> channels;  ///< by lane
  };
  struct Participant {
    bool attached = false;
    bool dead = false;
    bool silent = false;
    bool waiting = false;                          ///< in progress(), with nothing to do
    std::vector<std::optional<std::string>> lost;  ///< by peer: why
    std::deque<std::function<void()>> mailbox;
    std::thread::id drainer;  ///< calls what was in the mailbox; none: default
  };
  /// Time, then class of event, then what names the event whatever thread has made it.
  using EventKey = std::tuple<Time, int, int, int, std::uint64_t>;

  Direction& way(int from, int to) { return ways_[from * options_.peers + to]; }
  const Direction& way(int from, int to) const { return ways_[from * options_.peers + to]; }
  void schedule_locked(int from, int to, int lane, Send& send);
  void arrive(int from, int to, int lane, std::uint64_t sequence);
  void match_locked(int from, int to, int lane);
  void fail_locked(int owner, Link::Done done, LinkError error);
  void fail_all_locked(int owner, int peer, const LinkError& error);
  void end_locked(int peer, const std::string& text);
  void lose_locked(int self, int peer, const LinkError& error);
  bool run_event_locked(std::unique_lock<std::mutex>& lock);
  bool all_wait_locked() const;
  bool drain_locked(std::unique_lock<std::mutex>& lock, int peer);
  void drain_after_locked(std::unique_lock<std::mutex>& lock, int peer);
  void drain_all_locked(std::unique_lock<std::mutex>& lock);
  bool is_gone_locked(int self, int peer, Link::Done& done);

  const SimulatedOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Participant> participants_;
  std::vector<Direction> ways_;  ///< by from · peers + to
  std::map<EventKey, std::function<void()>> events_;
  std::uint64_t actions_ = 0;
  Time now_{0};
  bool advancing_ = false;
};

}  // namespace tutti
