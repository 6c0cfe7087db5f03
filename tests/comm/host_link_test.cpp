// The link between the hosts of a group: lanes, engines that differ, what is logged.

#include "comm/host_link.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "comm/group_state.h"
#include "comm/hosts/host_channel.h"
#include "comm/link/link_engine.h"
#include "support/log_capture.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;

ThreadOptions two_hosts() {
  ThreadOptions options;
  const std::vector<RankSet> hosts = {RankSet::of(std::vector<int>{0, 1}),
                                      RankSet::of(std::vector<int>{2})};
  options.hosts = HostMap::of(hosts);
  options.world = std::make_shared<ThreadWorld>(3);
  return options;
}

class Lanes {
 public:
  explicit Lanes(const char* count) { ::setenv("TUTTI_LANES", count, 1); }
  ~Lanes() { ::unsetenv("TUTTI_LANES"); }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
};

/// Completes everything at once, and notes on which lanes it was.
class NotingLink final : public Link {
 public:
  struct Notes {
    std::mutex mutex;
    std::vector<int> sent;
    std::vector<int> received;
  };
  NotingLink(const LinkRequest& request, Notes& notes)
      : Link(request.self, request.peers, request.lanes), notes_(notes) {}
  std::string description() const override { return "noted"; }

 protected:
  void post_send(int lane, int, std::span<const std::byte>, Done done) override {
    note(notes_.sent, lane, done);
  }
  void post_receive(int lane, int, std::span<std::byte>, Done done) override {
    note(notes_.received, lane, done);
  }

 private:
  void note(std::vector<int>& lanes, int lane, const Done& done) {
    {
      const std::lock_guard lock(notes_.mutex);
      lanes.push_back(lane);
    }
    done(nullptr);
  }
  Notes& notes_;
};

TEST(HostLink, TheMessagesOfALaneGoByTurnsOverItsConnections) {
  const Lanes three("3");
  NotingLink::Notes notes;
  int lanes = 0;
  run_thread_ranks(
      3,
      [&](const Job& job) {
        set_link_engine({"noting", [&](const LinkRequest& request) {
                           if (request.self == 0) lanes = request.lanes;
                           return std::make_unique<NotingLink>(request, notes);
                         }});
        const Group group(job);
        HostLink link(*group.state(), {.name = "test", .lanes = 2});
        if (job.rank() == 1) return;
        link.connect();
        if (job.rank() == 2) return;
        std::byte byte{};
        OpenMessages open(2);
        for (const int lane : {1, 1, 0, 1, 1, 0}) link.send(lane, 1, {&byte, 1}, open.add(1));
        for (const int lane : {0, 1, 0}) link.receive(lane, 1, {&byte, 1}, open.add(1));
        EXPECT_FALSE(open.any());
      },
      two_hosts());
  EXPECT_EQ(lanes, 6);
  EXPECT_THAT(notes.sent, ElementsAre(3, 4, 0, 5, 3, 1));
  EXPECT_THAT(notes.received, ElementsAre(0, 3, 1));
}

TEST(HostLink, OverSeveralConnectionsMessagesKeepTheirOrder) {
  for (const char* const count : {"1", "2", "5"}) {
    const Lanes lanes(count);
    std::array<int, 12> got{};
    run_thread_ranks(
        3,
        [&](const Job& job) {
          const Group group(job);
          HostLink link(*group.state(), {.name = "test", .lanes = 2});
          link.connect();
          std::array<int, 12> numbers{};
          OpenMessages open(2);
          for (int i = 0; i < 12; ++i) {
            numbers[static_cast<std::size_t>(i)] = 100 + i;
            if (job.rank() == 0) {
              link.send(i % 2, 1,
                        std::as_bytes(std::span(&numbers[static_cast<std::size_t>(i)], 1)),
                        open.add(1));
            } else if (job.rank() == 2) {
              link.receive(i % 2, 0,
                           std::as_writable_bytes(std::span(&got[static_cast<std::size_t>(i)], 1)),
                           open.add(0));
            }
          }
          while (open.any()) link.check();
          Group(job, "end").barrier();
        },
        two_hosts());
    for (int i = 0; i < 12; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 100 + i);
  }
}

TEST(HostLink, WhatWasChosenAndWhyIsLoggedOnce) {
  const LogCapture log;
  for (const char* const count : {"", "2"}) {
    const Lanes lanes(count);
    run_thread_ranks(
        3,
        [&](const Job& job) {
          const Group group(job);
          HostLink one(*group.state(), {.name = "one"});
          HostLink other(*group.state(), {.name = "other"});
          one.connect();
          other.connect();
          group.barrier();
        },
        two_hosts());
  }
  EXPECT_EQ(log.count("links between hosts: "), 2);
  EXPECT_EQ(log.count("1 for each kind of message (the default); a test has set it"), 1);
  EXPECT_EQ(log.count("2 for each kind of message (TUTTI_LANES); a test has set it"), 1);
}

/// The texts of three ranks of two hosts in an all-reduce for which rank 0's engine finds the
/// connection to the other host broken; `other` is what that one's engine does.
ThreadOutcome reduce_over_a_broken_link(const ThreadOptions& options,
                                        const std::function<void(const LinkRequest&)>& other,
                                        std::atomic<int>& over) {
  return try_thread_ranks(
      3,
      [&](const Job& job) {
        set_link_engine({"breaking", [&](const LinkRequest& request) -> std::unique_ptr<Link> {
                           if (request.self == 1) other(request);
                           throw IoError(0, "connection closed by peer");
                         }});
        const Group group(job);
        std::vector<float> values(500'000);
        const View view{values.data(), 500'000, DType::float32};
        try {
          group.all_reduce(view, Reduction::sum);
        } catch (...) {
          ++over;
          throw;
        }
      },
      options);
}

/// The engine sees the end of a connection before the job knows of the end of a worker.
// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(HostLink, AWorkerThatEndsWhileItIsMadeIsPeerLostOnAll) {
  auto options = two_hosts();
  std::atomic<int> over{0};
  const auto outcome = reduce_over_a_broken_link(
      options,
      [&](const LinkRequest&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        options.world->hosts()->kill(2);
        while (over < 2) std::this_thread::yield();
      },
      over);
  for (const int rank : {0, 1}) {
    try {
      std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]);
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), 2);
      EXPECT_THAT(lost.what(), ::testing::HasSubstr("rank 2 ended while hosts made their link: "
                                                    "connection closed by peer"));
    } catch (const std::exception& error) {
      ADD_FAILURE() << rank << ": " << error.what();
    }
  }
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(HostLink, AnEngineThatFailsThoughAllLiveIsPeerFailedOnTheOthers) {
  std::atomic<int> over{0};
  const auto outcome = reduce_over_a_broken_link(
      two_hosts(), [](const LinkRequest& request) { request.exchange("an address"); }, over);
  EXPECT_THROW(std::rethrow_exception(outcome.errors[0]), IoError);
  for (const int rank : {1, 2}) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]),
                 PeerFailed);
    EXPECT_THAT(outcome.text(rank), ::testing::HasSubstr("rank 0 has failed, and with it group"));
  }
}

/// Rank 2 does not come before rank 0 has given up: to the making of the hosts' group in the first
/// round, to that of the link in the second.
TEST(HostLink, ThatIsMadeForWhatHasEndedIsNotWaitedFor) {
  NotingLink::Notes notes;
  for (const bool has_group : {false, true}) {
    auto options = two_hosts();
    options.job.deadline = std::chrono::seconds(10);
    std::atomic<bool> over{false};
    run_thread_ranks(
        3,
        [&](const Job& job) {
          set_link_engine({"exchanging", [&](const LinkRequest& request) {
                             request.exchange("an address");
                             return std::make_unique<NotingLink>(request, notes);
                           }});
          const Group group(job);
          if (has_group) group.state()->first_of_hosts();
          HostLink link(*group.state(), {.name = "test"});
          if (job.rank() == 0) {
            const auto check = [] { throw Mismatch("what it is for has ended"); };
            EXPECT_THROW(link.connect(check), Mismatch);
            over = true;
          }
          while (!over) std::this_thread::yield();
        },
        options);
  }
}

/// While rank 0 makes the link for the second call it takes the first one further, which needs the
/// link too. Rank 2 comes to it late, so that rank 0 has the time.
TEST(HostLink, IsMadeOnceForTheCallsOfTwoLanes) {
  auto options = two_hosts();
  options.job.deadline = std::chrono::seconds(10);
  std::atomic<int> started{0};
  run_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        std::vector<float> first(20000, 1), second(20000, 2);
        const auto view = [](std::vector<float>& values) {
          return View{values.data(), static_cast<std::int64_t>(values.size()), DType::float32};
        };
        auto one = group.start().all_reduce(view(first), Reduction::sum);
        auto two = group.start().all_reduce(view(second), Reduction::sum);
        ++started;
        while (started < 3) std::this_thread::yield();
        // What the others have started comes to this host meanwhile, and nobody looks.
        std::this_thread::sleep_for(std::chrono::milliseconds(job.rank() == 2 ? 600 : 100));
        two.wait();
        one.wait();
        EXPECT_EQ(first.front(), 3);
        EXPECT_EQ(second.back(), 6);
      },
      options);
}

}  // namespace
}  // namespace tutti::test
