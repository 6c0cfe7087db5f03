#include "chaos/chaos_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <stdexcept>
#include <utility>

#include "base/deadline.h"
#include "comm/link/link_engine.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/wrapped_rendezvous.h"

namespace tutti::test::chaos {
namespace {

thread_local int rank_of_thread = 0;

struct Ends {
  FileDescriptor outer;
  FileDescriptor inner;
};

Ends make_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("socketpair");
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// A worker's side of which nothing is left when it dies: threads that serve it live on here.
class MortalRendezvous final : public WrappedRendezvous {
 public:
  MortalRendezvous(std::unique_ptr<Rendezvous> inner, const std::atomic<bool>& has_ended)
      : WrappedRendezvous(std::move(inner)), has_ended_(has_ended) {}
  void when_alone(std::function<void()> told) override {
    if (!told) return WrappedRendezvous::when_alone({});
    WrappedRendezvous::when_alone([this, told = std::move(told)] {
      if (!has_ended_) told();
    });
  }

 private:
  const std::atomic<bool>& has_ended_;
};

}  // namespace

/// The connection of a host to the hub, and a thread that passes on late what comes. The order of
/// bytes in a direction stays, as that of TCP.
class ChaosHosts::Wire {
 public:
  Wire(std::uint64_t seed, std::chrono::microseconds delay, std::size_t piece)
      : draw_(seed), delay_(delay), piece_(piece), ends_{make_pair(), make_pair()} {}
  ~Wire() {
    cut();
    if (thread_.joinable()) thread_.join();
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  FileDescriptor hub_end() { return std::move(ends_[0].outer); }
  FileDescriptor host_end() { return std::move(ends_[1].outer); }
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void silence(bool silent) { silent_ = silent; }
  void cut() {
    for (const auto& end : ends_) ::shutdown(end.inner.get(), SHUT_RDWR);
  }

 private:
  struct Piece {
    Clock::time_point due;
    std::vector<char> bytes;
  };

  void run() {
    while (true) {
      const auto now = Clock::now();
      auto next = now + std::chrono::milliseconds(silent_ ? 2 : 10);
      for (int from = 0; from < 2 && !silent_; ++from) {
        auto& pieces = pieces_[from];
        for (; !pieces.empty() && pieces.front().due <= now; pieces.pop_front()) {
          if (!send_all(ends_[1 - from].inner.get(), pieces.front().bytes)) return cut();
        }
        if (!pieces.empty()) next = std::min(next, pieces.front().due);
      }
      pollfd polled[2];
      for (int from = 0; from < 2; ++from) {
        polled[from] = {silent_ ? -1 : ends_[from].inner.get(), POLLIN, 0};
      }
      const auto wait = std::chrono::nanoseconds(std::max(next - now, Clock::duration(0))).count();
      const timespec rest{0, static_cast<long>(wait)};
      ::ppoll(polled, 2, &rest, nullptr);
      for (int from = 0; from < 2; ++from) {
        if (polled[from].revents != 0 && !take(from)) return cut();
      }
    }
  }
  bool take(int from) {
    std::array<char, 65536> bytes;
    const auto got = ::read(ends_[from].inner.get(), bytes.data(), std::min(piece_, bytes.size()));
    if (got <= 0) return false;
    auto due = Clock::now();
    if (delay_.count() > 0) {
      due += std::chrono::microseconds(draw_.below(static_cast<std::uint64_t>(delay_.count())));
    }
    auto& pieces = pieces_[from];
    if (!pieces.empty()) due = std::max(due, pieces.back().due);
    pieces.push_back({due, {bytes.begin(), bytes.begin() + got}});
    return true;
  }
  static bool send_all(int to, const std::vector<char>& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const auto now = ::send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<std::size_t>(now);
    }
    return true;
  }

  Draw draw_;
  const std::chrono::microseconds delay_;
  const std::size_t piece_;
  Ends ends_[2];  ///< of the hub, of the host; `inner` is this object's
  std::deque<Piece> pieces_[2];
  std::atomic<bool> silent_{false};
  std::thread thread_;
};

ChaosHosts::ChaosHosts(const ChaosCase& one, const std::shared_ptr<System>& system)
    : case_(one),
      map_(one.map()),
      wires_(static_cast<std::size_t>(map_.hosts())),
      links_of_(static_cast<std::size_t>(map_.size()), End::none),
      has_ended_(static_cast<std::size_t>(map_.size())) {
  const auto hosts = static_cast<std::size_t>(map_.hosts());
  std::vector<BrokerHosts> places(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    places[host].map = map_;
    places[host].system = system;
    places[host].here = static_cast<int>(host);
    places[host].connections.resize(hosts);
  }
  for (std::size_t host = 1; host < hosts; ++host) {
    wires_[host] = std::make_unique<Wire>(one.seed_of(1000 + host), one.wire_delay, one.wire_piece);
    places[0].connections[host] = wires_[host]->hub_end();
    places[host].connections[0] = wires_[host]->host_end();
    wires_[host]->start();
  }
  for (auto& place : places) brokers_.push_back(std::make_unique<Broker>(std::move(place)));
  for (int rank = 0; rank < map_.size(); ++rank) {
    Broker& broker = *brokers_[static_cast<std::size_t>(map_.host_of(rank))];
    ends_.emplace_back(::fcntl(broker.worker_end(rank), F_DUPFD_CLOEXEC, 0));
    broker.close_worker_end(rank);
  }
  set_link_engine({"simulated", [this](const LinkRequest& request) {
                     const std::lock_guard lock(mutex_);
                     auto& network = networks_[request.name];
                     if (!network.links) {
                       network.links = std::make_unique<SimulatedNetwork>(SimulatedOptions{
                           .peers = request.peers,
                           .lanes = request.lanes,
                           .modelled = case_.modelled,
                           .seed = case_.seed_of(2000 + networks_.size()),
                           .path = {case_.latency, case_.jitter, case_.bytes_per_second},
                           .path_of = {},
                           .lanes_overtake = case_.lanes_overtake});
                     }
                     auto link = network.links->link(request.self);
                     network.participants.push_back({rank_of_thread, request.self});
                     end_link(network, request.self,
                              links_of_[static_cast<std::size_t>(rank_of_thread)]);
                     return link;
                   }});
  pump_ = std::thread([this] { pump(); });
}

/// The hub waits for the others.
ChaosHosts::~ChaosHosts() {
  for (const auto& end : ends_) ::shutdown(end.get(), SHUT_RDWR);
  ends_.clear();
  for (const auto& wire : wires_) {
    if (wire) wire->silence(false);
  }
  while (!brokers_.empty()) brokers_.pop_back();
  set_link_engine({});
  is_over_ = true;
  pump_.join();
}

std::unique_ptr<Rendezvous> ChaosHosts::rendezvous(int rank) {
  rank_of_thread = rank;
  const auto r = static_cast<std::size_t>(rank);
  return std::make_unique<MortalRendezvous>(
      connect_to_first(ends_[r].duplicate(), "a test", map_.neighbours(rank).first(), rank,
                       map_.size()),
      has_ended_[r]);
}

/// The model's clock goes on by one event after the other, at the case's pace.
void ChaosHosts::pump() {
  Draw draw(case_.seed_of(3000));
  while (!is_over_) {
    std::vector<SimulatedNetwork*> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, network] : networks_) all.push_back(network.links.get());
    }
    bool moved = false;
    for (auto* const network : all) moved = network->step() || moved;
    if (!moved) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else if (case_.pace.count() > 0) {
      const auto most = static_cast<std::uint64_t>(case_.pace.count());
      std::this_thread::sleep_for(std::chrono::microseconds(draw.below(most)));
    }
  }
}

std::vector<ChaosHosts::Wire*> ChaosHosts::wires_of(int host) {
  std::vector<Wire*> all;
  for (std::size_t h = 1; h < wires_.size(); ++h) {
    if (host == 0 || host == static_cast<int>(h)) all.push_back(wires_[h].get());
  }
  return all;
}

void ChaosHosts::end_link(Network& network, int peer, End how) {
  if (how == End::closed) network.links->kill(peer);
  if (how == End::silent) network.links->silence(peer);
}

void ChaosHosts::end_links(const RankSet& ranks, End how) {
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks.ranks()) links_of_[static_cast<std::size_t>(rank)] = how;
  for (auto& [name, network] : networks_) {
    for (const auto& one : network.participants) {
      if (ranks.contains(one.rank)) end_link(network, one.peer, how);
    }
  }
}

void ChaosHosts::end_worker(int rank) {
  has_ended_[static_cast<std::size_t>(rank)] = true;
  end_links({rank}, End::closed);
  ::shutdown(ends_[static_cast<std::size_t>(rank)].get(), SHUT_RDWR);
}

void ChaosHosts::end_host(int host) {
  for (auto* const wire : wires_of(host)) wire->cut();
  for (const int rank : map_.ranks_of(host).ranks()) end_worker(rank);
}

void ChaosHosts::silence(int host, bool silent) {
  for (auto* const wire : wires_of(host)) wire->silence(silent);
}

void ChaosHosts::lose_messages(int host) { end_links(map_.ranks_of(host), End::silent); }

void ChaosHosts::break_links(int host) { end_links(map_.ranks_of(host), End::closed); }

}  // namespace tutti::test::chaos
