#pragma once

// Hosts for ranks that are threads of this process: a broker for each, connected as those of real
// hosts are. Ranks of one host share memory, others reach each other through the brokers, and over
// simulated links, which are this process' engine as long as the hosts exist.
//
// Threads: any. Failure: as Broker.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "base/system.h"
#include "job/hosts/host_map.h"
#include "job/rendezvous/broker.h"
#include "job/wire/rendezvous.h"
#include "support/simulated_link.h"

namespace tutti::test {

/// `size` ranks on `hosts` hosts, contiguous, as equal as can be.
HostMap even_hosts(int size, int hosts);
/// The number of hosts that TUTTI_TEST_HOSTS asks for: a way to run tests that know nothing of
/// hosts on several. 1 unless set.
int asked_hosts();

/// A broker for each host, connected. None serves before all its workers' ends are closed.
std::vector<std::unique_ptr<Broker>> connected_brokers(const HostMap& map);

class ThreadHosts {
 public:
  /// `system` maps what the brokers store to.
  ThreadHosts(HostMap map, const std::shared_ptr<System>& system);
  ~ThreadHosts();
  ThreadHosts(const ThreadHosts&) = delete;
  ThreadHosts& operator=(const ThreadHosts&) = delete;

  const HostMap& map() const { return map_; }
  /// The given rank's side, once.
  std::unique_ptr<Rendezvous> rendezvous(int rank);
  /// Closes the rank's line to its broker, as its death does.
  void kill(int rank);
  /// From now on nothing that the rank stores reaches its broker.
  void lose_stores(int rank);
  /// The rank's broker ends, as far as the rank can see; call it after lose_stores().
  void end_broker_of(int rank);
  /// Closes the connection between a host and the hub.
  void cut(int host);
  /// While `held`, nothing that the host says reaches the hub, from the return on; what the hub
  /// says arrives.
  void hold(int host, bool held);
  std::vector<Blame> blames() const;
  /// What the brokers have sent one another.
  HostTraffic traffic() const;
  /// All links of a host break. Its workers live.
  void break_links(int host);
  /// Nothing arrives over links from a host or at it any more, and nobody is told.
  void silence_links(int host);
  /// Bytes that links have brought to a host, and from it.
  std::uint64_t link_bytes(int host);
  std::uint64_t link_bytes_from(int host);

 private:
  class Side;
  HostMap map_;
  std::vector<std::unique_ptr<Broker>> brokers_;
  std::vector<FileDescriptor> ends_;        ///< by rank
  std::vector<Side*> sides_;                ///< by rank, once it has asked for it
  std::vector<std::atomic<bool>> is_dead_;  ///< by rank: killed, beside others of its host
  class Wire;
  std::vector<std::unique_ptr<Wire>> wires_;  ///< by host: its connection to the hub
  std::mutex links_mutex_;
  std::map<std::string, std::unique_ptr<SimulatedNetwork>> links_;  ///< by their names
};

}  // namespace tutti::test
