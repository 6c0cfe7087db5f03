#include "support/thread_hosts.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "job/socket_rendezvous.h"
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

struct Wired {
  std::vector<std::unique_ptr<Broker>> brokers;
  std::vector<FileDescriptor> wires;  ///< by host: its connection to the hub
};

Wired wire(const HostMap& map) {
  const auto hosts = static_cast<std::size_t>(map.hosts());
  Wired wired;
  wired.wires.resize(hosts);
  std::vector<BrokerHosts> places(hosts);
  for (std::size_t host = 0; host < hosts; ++host) {
    places[host].map = map;
    places[host].here = static_cast<int>(host);
    places[host].connections.resize(hosts);
  }
  for (std::size_t host = 1; host < hosts; ++host) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    places[0].connections[host] = FileDescriptor(ends[0]);
    places[host].connections[0] = FileDescriptor(ends[1]);
    wired.wires[host] = places[host].connections[0].duplicate();
  }
  for (auto& place : places) wired.brokers.push_back(std::make_unique<Broker>(std::move(place)));
  return wired;
}

}  // namespace

std::vector<std::unique_ptr<Broker>> connected_brokers(const HostMap& map) {
  return wire(map).brokers;
}

ThreadHosts::ThreadHosts(HostMap map)
    : map_(std::move(map)), ends_(static_cast<std::size_t>(map_.size())) {
  auto wired = wire(map_);
  brokers_ = std::move(wired.brokers);
  wires_ = std::move(wired.wires);
  for (int rank = 0; rank < map_.size(); ++rank) {
    Broker& broker = *brokers_[static_cast<std::size_t>(map_.host_of(rank))];
    ends_[static_cast<std::size_t>(rank)] =
        FileDescriptor(::fcntl(broker.worker_end(rank), F_DUPFD_CLOEXEC, 0));
    broker.close_worker_end(rank);
  }
}

/// The hub waits for the others.
ThreadHosts::~ThreadHosts() {
  ends_.clear();
  wires_.clear();
  while (!brokers_.empty()) brokers_.pop_back();
}

std::unique_ptr<Rendezvous> ThreadHosts::rendezvous(int rank) {
  return connect_to_first(ends_[static_cast<std::size_t>(rank)].duplicate(), "a test",
                          map_.neighbours(rank).first(), rank, map_.size());
}

void ThreadHosts::kill(int rank) {
  ::shutdown(ends_[static_cast<std::size_t>(rank)].get(), SHUT_RDWR);
}

void ThreadHosts::cut(int host) {
  ::shutdown(wires_[static_cast<std::size_t>(host)].get(), SHUT_RDWR);
}

std::vector<Blame> ThreadHosts::blames() const { return brokers_.front()->blames(); }

}  // namespace tutti::test
