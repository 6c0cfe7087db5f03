// How a link over Gloo is made, and over what: errors, the store, backends of the user's own.

#include "c10d/gloo_link.h"

#include <barrier>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/helper_thread.h"
#include "c10d/backend_link.h"
#include "comm/link/link_collectives.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

c10::intrusive_ptr<c10d::Store> hash_store() { return c10::make_intrusive<c10d::HashStore>(); }

/// An all-gather of threads.
class Table {
 public:
  explicit Table(int peers) : mine_(peers), all_here_(peers), all_read_(peers) {}
  ExchangeBytes exchange(int self) {
    return [this, self](const std::string& mine) {
      mine_[self] = mine;
      all_here_.arrive_and_wait();
      auto all = mine_;
      ++rounds[self];
      all_read_.arrive_and_wait();
      return all;
    };
  }
  std::vector<int> rounds = std::vector<int>(8);

 private:
  std::vector<std::string> mine_;
  std::barrier<> all_here_;
  std::barrier<> all_read_;
};

void run_threads(int peers, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int self = 0; self < peers; ++self) threads.emplace_back(body, self);
  for (auto& thread : threads) thread.join();
}

template <typename Kind>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another class: " << error.what();
  }
  return "";
}

TEST(GlooLink, IsMadeOverAnAllGatherOfTheCallers) {
  Table table(3);
  run_threads(3, [&](int self) {
    const auto link = make_gloo_link({.self = self,
                                      .peers = 3,
                                      .lanes = 2,
                                      .interface = "lo",
                                      .deadline = Deadline::after(Clock::now(), seconds(60))},
                                     table.exchange(self));
    EXPECT_EQ(link->description(), "gloo on lo, 2 lanes");
    EXPECT_EQ(link->self(), self);
    // The rounds have ended on all at once: another one would hang.
    PendingOperation received;
    PendingOperation sent;
    std::byte in{0};
    std::byte out{static_cast<std::byte>(self + 1)};
    link->receive(1, (self + 2) % 3, {&in, 1}, received.done());
    link->send(1, (self + 1) % 3, {&out, 1}, sent.done());
    EXPECT_TRUE(received.wait(*link, Deadline::never()) && sent.wait(*link, Deadline::never()));
    EXPECT_EQ(static_cast<int>(in), (self + 2) % 3 + 1);
  });
  EXPECT_EQ(table.rounds[0], table.rounds[1]);
  EXPECT_EQ(table.rounds[0], table.rounds[2]);
}

/// Or a worker that has a link would never be one of those that are proven to wait for one another.
// promise: clusters#several-hosts
TEST(GlooLink, ItsThreadsDoNotCountAsThreadsOfTheProgram) {
  const int before = other_threads();
  Table table(2);
  std::vector<std::unique_ptr<Link>> links(2);
  run_threads(2, [&](int self) {
    links[static_cast<std::size_t>(self)] = make_gloo_link(
        {.self = self, .peers = 2, .lanes = 2, .interface = "lo"}, table.exchange(self));
  });
  // Threads that were joined are listed for a moment yet.
  const auto deadline = Deadline::after(Clock::now(), seconds(20));
  while (other_threads() != before && Clock::now() < deadline.at) std::this_thread::yield();
  EXPECT_EQ(other_threads(), before);
}

TEST(GlooLink, OfOnePeerHasNobodyToTalkTo) {
  const auto link = make_gloo_link({.address = "127.0.0.1"}, hash_store());
  EXPECT_EQ(link->peers(), 1);
}

TEST(GlooLink, NeedsOneThingToBindTo) {
  const auto text = "needs the interface or the address to bind to, and not both";
  EXPECT_THAT(error_of<InvalidArgument>([] { make_gloo_link({}, hash_store()); }), HasSubstr(text));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                make_gloo_link({.interface = "lo", .address = "127.0.0.1"}, hash_store());
              }),
              HasSubstr(text));
  EXPECT_THAT(
      error_of<InvalidArgument>([] { make_gloo_link({.interface = "eth77"}, hash_store()); }),
      HasSubstr("Gloo cannot use the interface \"eth77\": "));
  EXPECT_THAT(
      error_of<InvalidArgument>([] { make_gloo_link({.address = "192.0.2.1"}, hash_store()); }),
      HasSubstr("Gloo cannot use the address \"192.0.2.1\": "));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                make_gloo_link({.self = 2, .peers = 2, .address = "127.0.0.1"}, hash_store());
              }),
              HasSubstr("peer 2 of 2"));
}

TEST(GlooLink, APeerThatDoesNotComeIsATimeout) {
  const auto begin = Clock::now();
  EXPECT_THAT(error_of<Timeout>([&] {
                make_gloo_link({.self = 0,
                                .peers = 2,
                                .address = "127.0.0.1",
                                .deadline = Deadline::after(begin, milliseconds(300))},
                               hash_store());
              }),
              HasSubstr("Gloo could not connect peer 0 of 2: "));
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

TEST(GlooLink, AnExchangeThatFailsEndsTheAttempt) {
  EXPECT_THAT(error_of<IoError>([&] {
                make_gloo_link({.self = 0,
                                .peers = 2,
                                .address = "127.0.0.1",
                                .deadline = Deadline::after(Clock::now(), seconds(60))},
                               [](const std::string&) -> std::vector<std::string> {
                                 throw Error("peer 1 has ended");
                               });
              }),
              HasSubstr("peer 1 has ended"));
}

TEST(BackendLink, RefusesBackendsThatDisagree) {
  EXPECT_THAT(error_of<InvalidArgument>([] { make_backend_link({}, "mine"); }),
              HasSubstr("at least one backend"));
  EXPECT_THAT(error_of<InvalidArgument>([] { make_backend_link({{}}, "mine"); }),
              HasSubstr("is null"));
}

TEST(GatherStore, AllSeeTheSameHistory) {
  Table table(3);
  std::vector<std::vector<std::int64_t>> sums(3);
  std::vector<std::string> winners(3);
  run_threads(3, [&](int self) {
    GatherStore store(table.exchange(self), self);
    store.setTimeout(seconds(60));
    for (int i = 0; i < 5; ++i) sums[self].push_back(store.add("sum", self + 1));
    winners[self] = store.compareSet("winner", "", "peer " + std::to_string(self));
    store.set("mine " + std::to_string(self), std::to_string(self));
    store.wait({"mine 0", "mine 1", "mine 2"});
    EXPECT_EQ(store.get_to_str("mine " + std::to_string((self + 1) % 3)),
              std::to_string((self + 1) % 3));
    EXPECT_FALSE(store.check({"mine 0", "mine 3"}));
    store.add("done", 1);
    while (store.add("done", 0) < 3) {
    }
    EXPECT_EQ(store.getNumKeys(), 6);
    store.finish();
    EXPECT_EQ(store.get_to_str("sum"), "30");
  });
  EXPECT_EQ(winners[0], winners[1]);
  EXPECT_EQ(winners[0], winners[2]);
  std::vector<std::int64_t> all;
  for (const auto& some : sums) {
    EXPECT_TRUE(std::ranges::is_sorted(some));
    all.insert(all.end(), some.begin(), some.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::unique(all).size(), 0U) << "two adds gave the same sum";
  EXPECT_EQ(all.back(), 30);
}

TEST(GatherStore, AKeyThatDoesNotComeIsATimeout) {
  Table table(1);
  GatherStore store(table.exchange(0), 0);
  store.setTimeout(milliseconds(50));
  try {
    store.get("nobody's");
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("have not given nobody's"));
  }
  EXPECT_TRUE(store.deleteKey("a") == false);
  store.set("a", "1");
  EXPECT_TRUE(store.deleteKey("a"));
}

TEST(GatherStore, AddingToATextIsTheStoresErrorOnAll) {
  Table table(2);
  run_threads(2, [&](int self) {
    GatherStore store(table.exchange(self), self);
    if (self == 0) store.set("a", "7 or so");
    store.wait({"a"});
    for (int time = 0; time < 2; ++time) {
      try {
        store.add("a", 1);
        ADD_FAILURE() << "no error";
      } catch (const c10::DistStoreError& error) {
        EXPECT_THAT(error.what(), HasSubstr("a is \"7 or so\": only numbers can be added up"));
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
