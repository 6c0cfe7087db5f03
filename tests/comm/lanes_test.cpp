// Calls that are under way at the same time on the lanes of a group: their progress, and their
// independence.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/collective_cases.h"
#include "comm/hosts/host_channel.h"
#include "comm/lengths.h"
#include "comm/link/link_engine.h"
#include "comm/local/control_arena.h"
#include "comm/on_hosts.h"
#include "support/log_capture.h"
#include "support/simulated_link.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

/// Rank 1 makes the second call only when the first, which rank 0 does not wait for, is complete.
// promise: group#waiting-and-what-started-means
TEST(Lanes, MoveOnWhileTheirThreadWaitsOnAnotherLane) {
  for (const int lanes : {1, 2, 4}) {
    for (const std::int64_t count : {std::int64_t{10}, kLarge, 3 * kLarge}) {
      run_thread_ranks(2, [&](const Job& job) {
        const Group group(job, "world", {.lanes = lanes});
        Values<float> x(count);
        std::fill_n(x.data(), count, static_cast<float>(job.rank() + 1));
        if (job.rank() == 0) {
          Work work = group.start().all_reduce(view(x), view(x), Reduction::sum);
          group.barrier();
          work.wait();
        } else {
          group.all_reduce(view(x), Reduction::sum);
          group.barrier();
        }
        ASSERT_EQ(std::count(x.data(), x.data() + count, 3.0f), count);
      });
    }
  }
}

/// Rank 1 comes to the other group only when all calls of the first are complete.
TEST(Lanes, AllMoveOnWhileTheirThreadWaitsInAnotherGroup) {
  constexpr std::size_t kCalls = 7;
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job, "first", {.lanes = 4});
    const Group other(job, "second");
    std::vector<Values<float>> x;
    std::vector<Work> works;
    for (std::size_t i = 0; i < kCalls; ++i) {
      x.emplace_back(kLarge);
      std::fill_n(x[i].data(), kLarge, static_cast<float>(job.rank() + 1));
      works.push_back(group.start().all_reduce(view(x[i]), view(x[i]), Reduction::sum));
    }
    if (job.rank() == 0) other.barrier();
    while (!works.empty()) works.pop_back();
    if (job.rank() == 1) other.barrier();
    for (const auto& of_call : x) {
      ASSERT_EQ(std::count(of_call.data(), of_call.data() + kLarge, 3.0f), kLarge);
    }
  });
}

// promise: group#waiting-and-what-started-means
TEST(Lanes, MoveOnWhileOneOfTheirCallsIsPolledFor) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job, "world", {.lanes = 2});
    Values<float> x(kLarge);
    Values<float> y(kLarge);
    Work first = group.start().all_reduce(view(x), view(x), Reduction::sum);
    if (job.rank() == 1) {
      first.wait();
      group.all_reduce(view(y), Reduction::sum);
      return;
    }
    Work second = group.start().all_reduce(view(y), view(y), Reduction::sum);
    while (!second.done()) std::this_thread::yield();
  });
}

/// All calls under way are moved by the thread that waits, while the one that started them waits in
/// another group: never by both.
TEST(Lanes, MayBeWaitedForByAnotherThread) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job, "first", {.lanes = 2});
    const Group other(job, "second");
    std::array<Values<float>, 4> x{Values<float>(kLarge), Values<float>(kLarge),
                                   Values<float>(kLarge), Values<float>(5)};
    for (int round = 0; round < 5; ++round) {
      std::array<Work, 4> works;
      for (std::size_t i = 0; i < x.size(); ++i) {
        std::fill_n(x[i].data(), x[i].count(), static_cast<float>(job.rank() + 1));
        works[i] = group.start().all_reduce(view(x[i]), view(x[i]), Reduction::sum);
      }
      std::thread waiter([&] {
        for (const std::size_t i : {2, 1, 0, 3}) works[i].wait();
      });
      other.barrier();
      waiter.join();
      for (const auto& sum : x) {
        ASSERT_EQ(std::count(sum.data(), sum.data() + sum.count(), 3.0f), sum.count());
      }
    }
  });
}

/// Links of one process on which messages of some lanes wait until they are let go.
class HeldLinks {
 public:
  explicit HeldLinks(std::vector<int> held) : held_(std::move(held)) {
    set_link_engine({"held",
                     [this](const LinkRequest& request) {
                       const std::lock_guard lock(mutex_);
                       auto& network = networks_[request.name];
                       if (!network) {
                         network = std::make_unique<SimulatedNetwork>(
                             SimulatedOptions{.peers = request.peers, .lanes = request.lanes});
                       }
                       return std::make_unique<Held>(request, network->link(request.self), *this);
                     },
                     "a test has set it"});
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_.clear();
    for (const auto& send : waiting_) send();
    waiting_.clear();
  }

 private:
  class Held final : public Link {
   public:
    Held(const LinkRequest& request, std::unique_ptr<Link> inner, HeldLinks& all)
        : Link(request.self, request.peers, request.lanes), inner_(std::move(inner)), all_(all) {}
    std::string description() const override { return "held"; }

   protected:
    void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
      const std::lock_guard lock(all_.mutex_);
      auto send = [this, lane, peer, bytes, done = std::move(done)] {
        inner_->send(lane, peer, bytes, done);
      };
      if (std::ranges::find(all_.held_, lane) == all_.held_.end()) return send();
      all_.waiting_.push_back(std::move(send));
    }
    void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
      inner_->receive(lane, peer, bytes, std::move(done));
    }

   private:
    std::unique_ptr<Link> inner_;
    HeldLinks& all_;
  };
  std::mutex mutex_;
  std::vector<int> held_;
  std::vector<std::function<void()>> waiting_;
  std::map<std::string, std::unique_ptr<SimulatedNetwork>> networks_;
};

/// The messages of the first lane's calls are late: calls 1 and 3 of two lanes, all of one lane.
// promise: group#lanes-several-calls-at-a-time, group.h#Group, group.h#lanes
TEST(Lanes, OneWhoseMessagesAreLateDoesNotHoldUpTheOthersAndOneLaneIsSerial) {
  for (const int lanes : {1, 2, 4}) {
    std::unique_ptr<HeldLinks> links;
    std::once_flag once;
    std::atomic<int> looked{0};
    run_thread_ranks(
        2,
        [&](const Job& job) {
          std::call_once(once, [&] {
            links = std::make_unique<HeldLinks>(
                std::vector<int>{HostChannel::lane(HostChannel::kNodes, 0)});
          });
          const Group group(job, "world", {.lanes = lanes});
          std::array<Values<float>, 3> x{Values<float>(kLarge), Values<float>(kLarge),
                                         Values<float>(kLarge)};
          std::array<Work, 3> works;
          for (std::size_t i = 0; i < x.size(); ++i) {
            std::fill_n(x[i].data(), kLarge, static_cast<float>(job.rank() + 1));
            works[i] = group.start().all_reduce(view(x[i]), view(x[i]), Reduction::sum);
          }
          if (lanes > 1) {
            Values<float> y(kLarge);
            group.all_reduce(view(y), Reduction::sum);  // call 4, on the last lane
            works[1].wait();
            EXPECT_EQ(std::count(x[1].data(), x[1].data() + kLarge, 3.0f), kLarge);
          }
          for (int polls = 0; polls < 1000; ++polls) {
            ASSERT_FALSE(works[0].done());
            ASSERT_TRUE(lanes > 1 || !works[1].done());
            ASSERT_TRUE(lanes > 2 || !works[2].done());
          }
          if (++looked == 2) links->let_go();
          for (Work& work : works) work.wait();
          for (const auto& sum : x) {
            EXPECT_EQ(std::count(sum.data(), sum.data() + kLarge, 3.0f), kLarge);
          }
        },
        on({{0}, {1}}));
  }
}

// promise: group#lanes-several-calls-at-a-time, group.h#Work, group.h#barrier
TEST(Lanes, ABarrierIsOverWhenAllCallsBeforeItAre) {
  for (const bool is_started : {false, true}) {
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job, "world", {.lanes = 4});
      for (int round = 0; round < 20; ++round) {
        std::vector<Values<float>> x;
        std::vector<Work> works;
        for (std::size_t i = 0; i < 3; ++i) {
          x.emplace_back(2 * kLarge);
          std::fill_n(x[i].data(), x[i].count(), 1.0f);
          works.push_back(group.start().all_reduce(view(x[i]), view(x[i]), Reduction::sum));
        }
        if (is_started) {
          Work barrier = group.start().barrier();
          while (!barrier.done()) std::this_thread::yield();
          barrier.wait();
        } else {
          group.barrier();
        }
        for (const auto& sum : x) {
          ASSERT_EQ(std::count(sum.data(), sum.data() + sum.count(), 3.0f), sum.count());
        }
      }
    });
  }
}

// promise: group#lanes-several-calls-at-a-time, group.h#lanes
TEST(Lanes, HaveTwoKindsOfMessagesEachBetweenHosts) {
  for (const int lanes : {1, 2, 4}) {
    const LogCapture log;
    run_thread_ranks(
        2,
        [&](const Job& job) {
          const Group group(job, "world", {.lanes = lanes});
          Values<float> x(kLarge);
          group.all_reduce(view(x), Reduction::sum);
        },
        on({{0}, {1}}));
    // Copies of memory are the odd one.
    EXPECT_EQ(log.count(", " + std::to_string(1 + 2 * lanes) + " lanes, 1 for each kind"), 1);
  }
}

// promise: group#lanes-several-calls-at-a-time, group#when-something-is-wrong, group.h#lanes
TEST(Lanes, TakeTheirOwnControlMemory) {
  for (const int members : {1, 2, 8}) {
    const auto of_lanes = [&](int lanes) {
      return static_cast<double>(ControlArena::bytes(members, lanes)) / members / (1 << 20);
    };
    EXPECT_NEAR(of_lanes(2) - of_lanes(1), 2.1, 0.1);
    EXPECT_NEAR(of_lanes(4) - of_lanes(1), 6.3, 0.3);
  }
}

}  // namespace
}  // namespace tutti::test
