#pragma once

// A link between the hosts of a group.
//
// Threads: one; what send() and receive() are given runs on the link's threads. Failure: that of
// collectives, and of the engine; a link that fails is PeerLost.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/hosts/host_channel.h"
#include "comm/link/link.h"

namespace tutti {

class Communicator;

/// The link of the group's hosts, by their numbers: the first member of each has it. After a
/// failure it is dropped, and made again. The messages of each lane go by turns over as many lanes
/// of the engine as TUTTI_LANES says, so that several connections fill a fast network.
class HostLink final : public HostChannel {
 public:
  struct Options {
    std::string name = {};  ///< in errors: what it is for
    int lanes = 1;
    std::optional<std::chrono::milliseconds> deadline = {};
  };
  /// Keeps a reference.
  HostLink(Communicator& group, Options options);
  ~HostLink() override;
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  /// Nothing happens on members that are not the first of their hosts, nor where this thread is
  /// connecting: other lanes that it takes further while it waits stay where they are.
  void connect() override { connect({}); }
  /// The same where `check` is asked besides whether the group has ended: see gather().
  void connect(const std::function<void()>& check);
  bool is_connected() const override { return link_ != nullptr; }
  /// Ends what is under way.
  void drop() noexcept;

  void send(int lane, int host, std::span<const std::byte> bytes,
            std::function<void()> done = {}) override;
  void receive(int lane, int host, std::span<std::byte> bytes,
               std::function<void()> done = {}) override;
  /// Throws PeerLost where something has failed, once the job has had the time to find out who has
  /// died: what is left then are connections that break by themselves.
  void check() override;

 private:
  Link::Done then(std::function<void()> done);
  /// The engine's lane for the next message of a lane to, or from, a host.
  int next(std::vector<std::uint64_t>& turns, int lane, int host);
  void throw_if_lost(const Communicator& firsts, const std::exception& error,
                     const std::function<void()>& check) const;
  void log_choice(const std::string& reason);

  Communicator& group_;
  Options options_;
  int spread_ = 1;                   ///< lanes of the engine for each lane
  std::vector<std::uint64_t> sent_;  ///< messages so far, by lane and host
  std::vector<std::uint64_t> received_;
  bool is_connecting_ = false;
  std::atomic<int> in_calls_{0};  ///< threads of the link that are in this object
  std::atomic<bool> has_failed_{false};
  std::mutex failure_mutex_;
  LinkError failure_;  ///< the first one
  std::optional<Clock::time_point> failed_at_;
  std::unique_ptr<Link> link_;  ///< last, so that its operations end first
};

}  // namespace tutti
