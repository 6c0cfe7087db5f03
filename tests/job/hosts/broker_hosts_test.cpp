// Brokers of several hosts, and how long they stay.

#include <unistd.h>

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "job/rendezvous/socket_rendezvous.h"
#include "support/thread_hosts.h"
#include "support/watchdog.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// promise: clusters#a-worker-or-a-host-that-dies
TEST(BrokerHosts, TheHubStaysUntilAllHostsHaveLeft) {
  const Watchdog watchdog("a hub that stays", seconds(60));
  const auto map = even_hosts(3, 3);
  auto brokers = connected_brokers(map);
  std::vector<std::unique_ptr<Rendezvous>> sides;
  for (int rank = 0; rank < 3; ++rank) {
    auto& broker = *brokers[static_cast<std::size_t>(rank)];
    FileDescriptor end(::dup(broker.worker_end(rank)));
    broker.close_worker_end(rank);
    sides.push_back(connect_to_first(std::move(end), "a test", rank, rank, 3));
  }
  sides[0].reset();
  std::atomic<bool> gone{false};
  std::thread leaving([&] {
    brokers[0].reset();
    gone = true;
  });
  const auto give = [&](int rank) {
    const auto parcels = sides[static_cast<std::size_t>(rank)]->all_gather(
        "of two", {1, 2}, {std::to_string(rank), {}}, {Clock::now() + seconds(30)});
    EXPECT_EQ(parcels[0].bytes + parcels[1].bytes, "12");
  };
  for (int k = 0; k < 20; ++k) {
    std::thread other([&] { give(2); });
    give(1);
    other.join();
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_FALSE(gone);
  for (const std::size_t rank : {1, 2}) {
    sides[rank].reset();
    brokers[rank].reset();
  }
  leaving.join();
}

// promise: clusters#a-worker-or-a-host-that-dies
TEST(BrokerHosts, ABrokerStaysUntilItsOwnWorkersHaveLeft) {
  const Watchdog watchdog("a broker that stays", seconds(60));
  const auto map = HostMap::of(std::vector<RankSet>{{0}, {1, 2}});
  auto brokers = connected_brokers(map);
  std::vector<std::unique_ptr<Rendezvous>> sides;
  for (int rank = 0; rank < 3; ++rank) {
    auto& broker = *brokers[static_cast<std::size_t>(map.host_of(rank))];
    FileDescriptor end(::dup(broker.worker_end(rank)));
    broker.close_worker_end(rank);
    sides.push_back(connect_to_first(std::move(end), "a test", 1, rank, 3));
  }
  sides[1].reset();
  std::thread leaving([&] { brokers[1].reset(); });
  std::thread other([&] {
    sides[0]->all_gather("of two", {0, 2}, {"0", {}}, {Clock::now() + seconds(30)});
  });
  const auto parcels =
      sides[2]->all_gather("of two", {0, 2}, {"2", {}}, {Clock::now() + seconds(30)});
  EXPECT_EQ(parcels[0].bytes + parcels[1].bytes, "02");
  other.join();
  sides[2].reset();
  leaving.join();
  sides[0].reset();
}

}  // namespace
}  // namespace tutti::test
