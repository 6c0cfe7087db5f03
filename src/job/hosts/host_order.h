#pragma once

// The one order of what the workers of several hosts have to agree on. The broker of rank 0's host,
// the hub, puts what all brokers submit in an order and sends it to all of them, so that every host
// sees the same history: a total order broadcast through a star of connections. On one host what is
// submitted takes effect at once. A broker keeps what it has submitted, and gets a word that it is
// next in order, not its bytes.
//
// Connections carry few messages: what nobody looks at alone (Haste) waits until the last of its
// round has come, or for kHostCompany, and leaves with all that came before it. So a round in which
// all workers tell all others something is one message from each host to the hub, and one back.
// That delays what is in order, and changes no order.
//
// A broker that says nothing for kHostSilence, or whose connection closes, is lost: its workers
// count as ended on all hosts. Without the hub a broker is on its own: everybody elsewhere has
// ended.
//
// Threads: one at a time. Failure: none; what is lost is told by frames of kind `over`.

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>

#include "base/deadline.h"
#include "base/file_descriptor.h"
#include "base/system.h"
#include "job/hosts/host_map.h"
#include "job/wire/frame.h"

namespace tutti {

inline constexpr std::chrono::milliseconds kHostBeat{250};
inline constexpr std::chrono::milliseconds kHostSilence{1500};
/// The longest that a frame waits for others to leave with.
inline constexpr std::chrono::milliseconds kHostCompany{20};

/// Where a broker is among those of the other hosts.
struct BrokerHosts {
  HostMap map;
  int here = 0;
  std::string run = {};  ///< identity of the run, as the hub has it
  /// Connected stream sockets to brokers of other hosts, by host: on host 0, the hub, one to each
  /// of them, elsewhere one to the hub. The others are empty.
  std::vector<FileDescriptor> connections = {};
  std::shared_ptr<System> system = host_system();  ///< maps the memory of this host
};

/// What a broker has sent to those of other hosts, but for beats.
struct HostTraffic {
  std::uint64_t messages = 0;  ///< writes to a connection
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
};

class HostOrder {
 public:
  /// Makes a frame effective on this host; its header tells the worker from whom it is.
  using Obey = std::function<void(Frame)>;
  HostOrder(BrokerHosts hosts, Obey obey);

  const HostMap& map() const { return map_; }
  const std::string& run() const { return run_; }
  int here() const { return here_; }
  bool is_alone() const { return lines_.empty(); }
  /// Orders a frame of a worker of this host; its descriptors are not sent.
  void submit(Frame frame);
  /// Receives, orders and sends what it can; notices who is lost.
  void serve(Clock::time_point now);
  /// What serve() waits for: sockets to poll, and the time after which it must be called anyway.
  void add_polled(std::vector<pollfd>& polled, int& timeout_ms) const;
  /// Whether a broker of another host is still connected.
  bool is_connected() const;
  /// What this broker had submitted before that has taken effect.
  bool has_lost_hub() const { return !is_alone() && !is_hub() && !lines_[0].socket; }
  /// Whether something is left to send.
  bool has_more() const;
  /// Closes the connections: this host's workers have ended, and that was told.
  void close();
  const HostTraffic& traffic() const { return traffic_; }

 private:
  struct Line {
    FileDescriptor socket;
    FrameReader reader;
    FrameWriter writer;
    Clock::time_point heard;
    Clock::time_point sent;
    Clock::time_point held = {};  ///< since when the oldest frame waits for company
    bool is_due = false;          ///< what the writer has must leave
    bool beats = false;           ///< it has nothing but a beat
    std::uint64_t counted = 0;    ///< writes that are in traffic_, or were beats
  };
  bool is_hub() const { return here_ == 0; }
  static constexpr int kNone = -1;
  /// Puts a frame in order. The host that has submitted it, if another one has, keeps it.
  void sequence(Frame frame, int keeper = kNone);
  /// Notes the frame's place in its round. True if nobody is left to wait for, among those whose
  /// frames come through this broker.
  bool ends_wait(const FrameHeader& header);
  void push(Line& line, FrameHeader header, const std::shared_ptr<const Frame>& frame, bool is_due);
  void confirm(Line& line, int origin, bool is_due);
  void hear(int host, Clock::time_point now);
  bool take(int host, Frame frame);
  bool obey_own(int origin, int more);
  bool may_wait(const Line& line, Clock::time_point now) const;
  void send(int host, Clock::time_point now);
  void lose(int host);

  HostMap map_;
  std::string run_;
  int here_;
  Obey obey_;
  /// Submitted to the hub, which has not put them in order yet; without the hub they take effect
  /// here.
  std::deque<std::shared_ptr<Frame>> unconfirmed_;
  std::vector<Line> lines_;  ///< by host; none on one host
  Clock::time_point served_;
  std::map<std::uint64_t, RankSet> rounds_;  ///< under way: who has stored, by number
  HostTraffic traffic_;
};

}  // namespace tutti
