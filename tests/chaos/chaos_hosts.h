#pragma once

// Hosts of one process whose connections are as bad as a case says: what brokers tell one another
// comes late and in pieces, links bring messages by the model's clock, and both can end, or fall
// silent. Unlike ThreadHosts, whose connections are good.
//
// Threads: any. Failure: as Broker.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "base/system.h"
#include "chaos/chaos_case.h"
#include "job/rendezvous/broker.h"
#include "job/wire/rendezvous.h"
#include "support/simulated_link.h"

namespace tutti::test::chaos {

class ChaosHosts {
 public:
  /// `system` maps what the brokers store to. The links are this process' engine.
  ChaosHosts(const ChaosCase& one, const std::shared_ptr<System>& system);
  ~ChaosHosts();
  ChaosHosts(const ChaosHosts&) = delete;
  ChaosHosts& operator=(const ChaosHosts&) = delete;

  /// The given rank's side, once. Links that the calling thread makes are that rank's.
  std::unique_ptr<Rendezvous> rendezvous(int rank);
  /// What the death of a process does: its line to the broker and its links end.
  void end_worker(int rank);
  /// What the end of a machine does besides: its connection to the hub is closed, or those of the
  /// hub to all.
  void end_host(int host);
  /// While `silent`, nothing passes on the connection of the host to the hub, or of the hub to all.
  void silence(int host, bool silent);
  /// Nothing passes on links of the host any more, and nobody is told.
  void lose_messages(int host);
  /// Its links end, and its workers live.
  void break_links(int host);

 private:
  class Wire;
  struct Participant {
    int rank = 0;
    int peer = 0;
  };
  struct Network {
    std::unique_ptr<SimulatedNetwork> links;
    std::vector<Participant> participants;
  };
  enum class End { none, closed, silent };
  void pump();
  /// Links of these ranks, those that will be made too.
  void end_links(const RankSet& ranks, End how);
  static void end_link(Network& network, int peer, End how);
  std::vector<Wire*> wires_of(int host);

  const ChaosCase& case_;
  HostMap map_;
  std::vector<FileDescriptor> ends_;          ///< by rank
  std::vector<std::unique_ptr<Wire>> wires_;  ///< by host: its connection to the hub
  std::vector<std::unique_ptr<Broker>> brokers_;
  std::mutex mutex_;
  std::map<std::string, Network> networks_;   ///< by the names of links
  std::vector<End> links_of_;                 ///< by rank: what has become of its links
  std::vector<std::atomic<bool>> has_ended_;  ///< by rank
  std::atomic<bool> is_over_{false};
  std::thread pump_;
};

}  // namespace tutti::test::chaos
