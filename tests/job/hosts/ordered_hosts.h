#pragma once

// Orders of several hosts that are served by hand, without brokers.

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/hosts/host_order.h"
#include "support/watchdog.h"

namespace tutti::test {

/// What a host obeys: "2: text" of rank 2's frames, "2: text + 5 bytes" where it has any, "2 is
/// over" of its end.
using History = std::vector<std::string>;

inline Frame said(int rank, const std::string& text) {
  Frame frame;
  frame.header.kind = FrameHeader::store;
  frame.header.origin = rank;
  frame.text = text;
  return frame;
}

inline std::string line_of(const Frame& frame) {
  const auto rank = std::to_string(frame.header.origin);
  if (frame.header.kind == FrameHeader::over) return rank + " is over";
  const auto& bytes = frame.parcel.bytes;
  return rank + ": " + frame.text +
         (bytes.empty() ? "" : " + " + std::to_string(bytes.size()) + " bytes");
}

class Hosts {
 public:
  explicit Hosts(const std::vector<RankSet>& ranks) : histories_(ranks.size()) {
    std::vector<BrokerHosts> places(ranks.size());
    for (std::size_t h = 0; h < ranks.size(); ++h) {
      places[h].map = HostMap::of(ranks);
      places[h].here = static_cast<int>(h);
      places[h].connections.resize(ranks.size());
      if (h == 0) continue;
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      places[0].connections[h] = FileDescriptor(ends[0]);
      places[h].connections[0] = FileDescriptor(ends[1]);
      hosts_ends_.push_back(places[h].connections[0].duplicate());
    }
    for (std::size_t h = 0; h < ranks.size(); ++h) {
      orders_.push_back(std::make_unique<HostOrder>(std::move(places[h]), [this, h](Frame frame) {
        histories_[h].push_back(line_of(frame));
      }));
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  HostOrder& order(std::size_t host) { return *orders_[host]; }
  const History& history(std::size_t host) const { return histories_[host]; }
  void lose(std::size_t host) {
    orders_[host].reset();
    if (host > 0) hosts_ends_[host - 1].reset();
  }
  /// Bytes on their way from the hub to a host.
  std::size_t on_the_way_to(std::size_t host) const {
    int bytes = 0;
    if (::ioctl(hosts_ends_[host - 1].get(), FIONREAD, &bytes) != 0) std::abort();
    return static_cast<std::size_t>(bytes);
  }
  /// Serves all hosts in turn.
  void serve(Clock::time_point now = Clock::now()) {
    for (auto& order : orders_) {
      if (order) order->serve(now);
    }
  }
  void serve_until(const std::function<bool()>& done) {
    const Watchdog watchdog("hosts in order", std::chrono::seconds(90));
    while (!done()) serve();
  }

 private:
  std::vector<History> histories_;
  std::vector<FileDescriptor> hosts_ends_;  ///< of connections to the hub, from host 1 on
  std::vector<std::unique_ptr<HostOrder>> orders_;
};

}  // namespace tutti::test
