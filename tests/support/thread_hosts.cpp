#include "support/thread_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "comm/link/link_engine.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/wrapped_rendezvous.h"
#include "tutti/share.h"

namespace tutti::test {

HostMap even_hosts(int size, int hosts) {
  std::vector<RankSet> ranks;
  for (int host = 0; host < std::min(size, hosts); ++host) {
    const auto [begin, end] = share_of(size, host, std::min(size, hosts));
    RankSet here;
    for (auto rank = begin; rank < end; ++rank) here.insert(static_cast<int>(rank));
    ranks.push_back(here);
  }
  return HostMap::of(ranks);
}

int asked_hosts() {
  const char* const asked = std::getenv("TUTTI_TEST_HOSTS");
  return asked == nullptr ? 1 : std::stoi(asked);
}

namespace {

struct Ends {
  FileDescriptor hub;
  FileDescriptor host;
};

Ends make_wire() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("socketpair");
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

using Connect = std::function<Ends(std::size_t host)>;

std::vector<std::unique_ptr<Broker>> brokers_of(const HostMap& map,
                                                const std::shared_ptr<System>& system,
                                                const Connect& connect) {
  const auto hosts = static_cast<std::size_t>(map.hosts());
  std::vector<BrokerHosts> places(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    places[host].map = map;
    places[host].system = system;
    places[host].here = static_cast<int>(host);
    places[host].connections.resize(hosts);
  }
  for (std::size_t host = 1; host < hosts; ++host) {
    auto wire = connect(host);
    places[0].connections[host] = std::move(wire.hub);
    places[host].connections[0] = std::move(wire.host);
  }
  std::vector<std::unique_ptr<Broker>> brokers;
  for (auto& place : places) brokers.push_back(std::make_unique<Broker>(std::move(place)));
  return brokers;
}

}  // namespace

/// Two sockets and a thread that passes bytes on between them.
class ThreadHosts::Wire {
 public:
  Wire() : hub_(make_wire()), host_(make_wire()), passing_([this] { pass(); }) {}
  ~Wire() {
    cut();
    passing_.join();
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Ends ends() { return {std::move(hub_.hub), std::move(host_.host)}; }
  void hold(bool held) {
    held_ = held;
    while (holds_ != held && !has_ended_) std::this_thread::yield();
  }
  void cut() {
    ::shutdown(hub_.host.get(), SHUT_RDWR);
    ::shutdown(host_.hub.get(), SHUT_RDWR);
  }

 private:
  void pass() {
    bool goes_on = true;
    while (goes_on) {
      const bool held = held_;
      holds_ = held;
      pollfd polled[2] = {{hub_.host.get(), POLLIN, 0}, {held ? -1 : host_.hub.get(), POLLIN, 0}};
      ::poll(polled, 2, held ? 1 : 20);
      if (polled[0].revents != 0) goes_on = pass(hub_.host.get(), host_.hub.get());
      if (goes_on && polled[1].revents != 0) goes_on = pass(host_.hub.get(), hub_.host.get());
    }
    has_ended_ = true;
    cut();
  }
  static bool pass(int from, int to) {
    std::array<char, 65536> bytes;
    const auto got = ::read(from, bytes.data(), bytes.size());
    for (ssize_t sent = 0; sent < got;) {
      const auto now =
          ::send(to, bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += now;
    }
    return got > 0;
  }

  Ends hub_;   ///< its `host` end is ours
  Ends host_;  ///< its `hub` end is ours
  std::atomic<bool> held_{false};
  std::atomic<bool> holds_{false};  ///< the thread does so
  std::atomic<bool> has_ended_{false};
  std::thread passing_;
};

/// A rank's side of its line to a broker, which can seem to end.
class ThreadHosts::Side final : public WrappedRendezvous {
 public:
  Side(std::unique_ptr<Rendezvous> inner, const std::atomic<bool>& is_dead)
      : WrappedRendezvous(std::move(inner)), is_dead_(is_dead) {}
  void store(std::string message, const Haste& haste) override {
    if (!loses_) WrappedRendezvous::store(std::move(message), haste);
  }
  bool reaches_hosts() const override { return !is_alone_ && WrappedRendezvous::reaches_hosts(); }
  void when_alone(std::function<void()> told) override {
    const std::lock_guard lock(mutex_);
    told_ = told;
    if (!told) return WrappedRendezvous::when_alone({});
    WrappedRendezvous::when_alone([this, told = std::move(told)] {
      if (!is_dead_) told();
    });
  }
  void lose_stores() { loses_ = true; }
  void end() {
    is_alone_ = true;
    const std::lock_guard lock(mutex_);
    if (told_) told_();
  }

 private:
  /// Then its thread, which lives on here, must not tell others who share the board of its host.
  const std::atomic<bool>& is_dead_;
  std::atomic<bool> loses_{false};
  std::atomic<bool> is_alone_{false};
  std::mutex mutex_;
  std::function<void()> told_;
};

std::vector<std::unique_ptr<Broker>> connected_brokers(const HostMap& map) {
  return brokers_of(map, host_system(), [](std::size_t) { return make_wire(); });
}

ThreadHosts::ThreadHosts(HostMap map, const std::shared_ptr<System>& system)
    : map_(std::move(map)),
      ends_(static_cast<std::size_t>(map_.size())),
      sides_(static_cast<std::size_t>(map_.size())),
      is_dead_(static_cast<std::size_t>(map_.size())),
      wires_(static_cast<std::size_t>(map_.hosts())) {
  brokers_ = brokers_of(map_, system, [this](std::size_t host) {
    wires_[host] = std::make_unique<Wire>();
    return wires_[host]->ends();
  });
  for (int rank = 0; rank < map_.size(); ++rank) {
    Broker& broker = *brokers_[static_cast<std::size_t>(map_.host_of(rank))];
    ends_[static_cast<std::size_t>(rank)] =
        FileDescriptor(::fcntl(broker.worker_end(rank), F_DUPFD_CLOEXEC, 0));
    broker.close_worker_end(rank);
  }
  set_link_engine({"simulated",
                   [this](const LinkRequest& request) {
                     const std::lock_guard lock(links_mutex_);
                     auto& network = links_[request.name];
                     if (!network) {
                       network = std::make_unique<SimulatedNetwork>(
                           SimulatedOptions{.peers = request.peers, .lanes = request.lanes});
                     }
                     return network->link(request.self);
                   },
                   "a test has set it"});
}

/// The hub waits for the others.
ThreadHosts::~ThreadHosts() {
  set_link_engine({});
  ends_.clear();
  while (!brokers_.empty()) brokers_.pop_back();
}

std::unique_ptr<Rendezvous> ThreadHosts::rendezvous(int rank) {
  auto side = std::make_unique<Side>(
      connect_to_first(ends_[static_cast<std::size_t>(rank)].duplicate(), "a test",
                       map_.neighbours(rank).first(), rank, map_.size()),
      is_dead_[static_cast<std::size_t>(rank)]);
  sides_[static_cast<std::size_t>(rank)] = side.get();
  return side;
}

void ThreadHosts::lose_stores(int rank) { sides_[static_cast<std::size_t>(rank)]->lose_stores(); }

void ThreadHosts::end_broker_of(int rank) { sides_[static_cast<std::size_t>(rank)]->end(); }

void ThreadHosts::kill(int rank) {
  const bool has_neighbours = map_.neighbours(rank).size() > 1;
  is_dead_[static_cast<std::size_t>(rank)] = has_neighbours;
  ::shutdown(ends_[static_cast<std::size_t>(rank)].get(), SHUT_RDWR);
}

void ThreadHosts::cut(int host) { wires_[static_cast<std::size_t>(host)]->cut(); }

void ThreadHosts::hold(int host, bool held) { wires_[static_cast<std::size_t>(host)]->hold(held); }

HostTraffic ThreadHosts::traffic() const {
  HostTraffic all;
  for (const auto& broker : brokers_) {
    const auto one = broker->traffic();
    all.messages += one.messages;
    all.frames += one.frames;
    all.bytes += one.bytes;
  }
  return all;
}

void ThreadHosts::break_links(int host) {
  const std::lock_guard lock(links_mutex_);
  for (const auto& [name, network] : links_) network->kill(host);
}

std::uint64_t ThreadHosts::link_bytes(int host) {
  const std::lock_guard lock(links_mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [name, network] : links_) {
    for (int from = 0; from < map_.hosts(); ++from) {
      if (from != host) bytes += network->delivered(from, host).bytes;
    }
  }
  return bytes;
}

void ThreadHosts::silence_links(int host) {
  const std::lock_guard lock(links_mutex_);
  for (const auto& [name, network] : links_) network->silence(host);
}

std::uint64_t ThreadHosts::link_bytes_from(int host) {
  const std::lock_guard lock(links_mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [name, network] : links_) {
    for (int to = 0; to < map_.hosts(); ++to) {
      if (to != host) bytes += network->delivered(host, to).bytes;
    }
  }
  return bytes;
}

std::vector<Blame> ThreadHosts::blames() const { return brokers_.front()->blames(); }

}  // namespace tutti::test
