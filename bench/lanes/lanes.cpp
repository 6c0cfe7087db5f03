// What several lanes of a group gain, or cost: the same all-reduces in groups of 1, 2 and 4 lanes,
// which take turns. Two workers, threads of one process, on one host or on two of which the link's
// messages take some time.
//
//   bench_lanes WAY PLACE HOSTS DELAY_US BYTES CALLS ROUNDS
//
// WAY is "started" (all calls are started, then waited for) or "blocking", PLACE "arena" (memory of
// Group::allocate) or "staged" (the worker's own). Prints, as JSON, the nanoseconds of all calls of
// each round by lanes.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/link/link_engine.h"
#include "job/hosts/host_map.h"
#include "support/simulated_link.h"
#include "support/thread_ranks.h"
#include "tutti/group.h"

namespace {

using std::chrono::steady_clock;
using tutti::Link;

constexpr std::array<int, 3> kLanes = {1, 2, 4};

/// Does things in the order of their due times, which are all equally far ahead.
class Later {
 public:
  explicit Later(std::chrono::microseconds delay) : delay_(delay), thread_([this] { run(); }) {}
  ~Later() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;

  void add(std::function<void()> action) {
    const std::lock_guard lock(mutex_);
    actions_.emplace_back(steady_clock::now() + delay_, std::move(action));
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_over_ || !actions_.empty(); });
      if (is_over_) return;
      auto [due, action] = std::move(actions_.front());
      actions_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(due);
      action();
      lock.lock();
    }
  }

  const std::chrono::microseconds delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<steady_clock::time_point, std::function<void()>>> actions_;
  bool is_over_ = false;
  std::thread thread_;
};

/// A simulated link whose messages leave late.
class LateLink final : public Link {
 public:
  LateLink(std::unique_ptr<Link> inner, Later& later)
      : Link(inner->self(), inner->peers(), inner->lanes()),
        inner_(std::move(inner)),
        later_(later) {}
  std::string description() const override { return "late"; }

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    later_.add([this, lane, peer, bytes, done = std::move(done)] {
      inner_->send(lane, peer, bytes, done);
    });
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    inner_->receive(lane, peer, bytes, std::move(done));
  }

 private:
  std::unique_ptr<Link> inner_;
  Later& later_;
};

struct Wanted {
  bool is_started;
  bool is_staged;
  int hosts;
  std::chrono::microseconds delay;
  std::int64_t count;
  std::size_t calls;
  int rounds;
};

/// One worker's groups, and its part of a round in one of them.
class Worker {
 public:
  Worker(const tutti::Job& job, const Wanted& wanted) : wanted_(wanted) {
    const auto calls = static_cast<std::int64_t>(wanted.calls);
    for (const int lanes : kLanes) {
      groups_.emplace_back(job, std::to_string(lanes) + " lanes",
                           tutti::GroupOptions{.lanes = lanes});
      blocks_.push_back(groups_.back().allocate(
          static_cast<std::size_t>(std::max<std::int64_t>(1, wanted.count * spans() * 4))));
    }
    const auto mine = static_cast<float>(job.rank() + 1);
    own_.resize(static_cast<std::size_t>(wanted.count * calls), mine);
    for (std::size_t which = 0; which < kLanes.size(); ++which) {
      float* const block = reinterpret_cast<float*>(blocks_[which].data());
      std::fill_n(block, wanted.count * spans(), mine);
    }
  }

  /// Whether the calls so far have given the maximum over both workers.
  bool is_right(std::size_t which) {
    for (std::size_t call = 0; call < wanted_.calls; ++call) {
      const tutti::View x = span(which, call);
      const auto* const values = static_cast<const float*>(x.data);
      if (std::count(values, values + x.count, 2.0f) != x.count) return false;
    }
    return true;
  }

  /// Nanoseconds.
  double time(std::size_t which) {
    const tutti::Group& group = groups_[which];
    std::vector<tutti::Work> works(wanted_.is_started ? wanted_.calls : 0);
    group.barrier();
    const auto begin = steady_clock::now();
    for (std::size_t call = 0; call < wanted_.calls; ++call) {
      const tutti::View x = span(which, call);
      if (wanted_.is_started) {
        works[call] = group.start().all_reduce(x, x, tutti::Reduction::max);
      } else {
        group.all_reduce(x, tutti::Reduction::max);
      }
    }
    for (tutti::Work& work : works) work.wait();
    return std::chrono::duration<double, std::nano>(steady_clock::now() - begin).count();
  }

 private:
  std::int64_t spans() const {
    return wanted_.is_started ? static_cast<std::int64_t>(wanted_.calls) : 1;
  }
  tutti::View span(std::size_t which, std::size_t call) {
    float* const base =
        wanted_.is_staged ? own_.data() : reinterpret_cast<float*>(blocks_[which].data());
    const auto place = wanted_.is_started ? static_cast<std::int64_t>(call) : 0;
    return {base + place * wanted_.count, wanted_.count, tutti::DType::float32};
  }

  const Wanted& wanted_;
  std::vector<tutti::Group> groups_;
  std::vector<tutti::SharedMemory> blocks_;
  std::vector<float> own_;
};

using Rounds = std::array<std::vector<double>, kLanes.size()>;

Rounds measure(const Wanted& wanted) {
  constexpr int kWorkers = 2;
  Later later(wanted.delay);
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<tutti::SimulatedNetwork>> networks;
  std::once_flag once;
  Rounds rounds;
  tutti::test::ThreadOptions options;
  options.limit = std::chrono::minutes(10);
  if (wanted.hosts == 2) {
    options.hosts = tutti::HostMap::of(std::vector<tutti::RankSet>{{0}, {1}});
    options.world = std::make_shared<tutti::test::ThreadWorld>(kWorkers);
  }
  const auto make = [&](const tutti::LinkRequest& request) {
    const std::lock_guard lock(mutex);
    auto& network = networks[request.name];
    if (!network) {
      network = std::make_unique<tutti::SimulatedNetwork>(
          tutti::SimulatedOptions{.peers = request.peers, .lanes = request.lanes});
    }
    return std::make_unique<LateLink>(network->link(request.self), later);
  };
  tutti::test::run_thread_ranks(
      kWorkers,
      [&](const tutti::Job& job) {
        std::call_once(once, [&] { tutti::set_link_engine({"late", make, "the benchmark's"}); });
        Worker worker(job, wanted);
        for (std::size_t which = 0; which < kLanes.size(); ++which) {
          worker.time(which);
          if (!worker.is_right(which)) throw std::runtime_error("wrong values");
        }
        for (int round = 0; round < wanted.rounds; ++round) {
          for (std::size_t turn = 0; turn < kLanes.size(); ++turn) {
            const auto which = (turn + static_cast<std::size_t>(round)) % kLanes.size();
            const double time = worker.time(which);
            if (job.rank() == 0) rounds[which].push_back(time);
          }
        }
      },
      options);
  return rounds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::cerr << "bench_lanes WAY PLACE HOSTS DELAY_US BYTES CALLS ROUNDS\n";
    return 2;
  }
  const Wanted wanted{.is_started = std::string(argv[1]) == "started",
                      .is_staged = std::string(argv[2]) == "staged",
                      .hosts = std::stoi(argv[3]),
                      .delay = std::chrono::microseconds(std::stoi(argv[4])),
                      .count = std::stoll(argv[5]) / 4,
                      .calls = static_cast<std::size_t>(std::stoll(argv[6])),
                      .rounds = std::stoi(argv[7])};
  const Rounds rounds = measure(wanted);
  std::cout << '{';
  for (std::size_t which = 0; which < kLanes.size(); ++which) {
    std::cout << (which == 0 ? "" : ", ") << '"' << kLanes[which] << "\": [";
    for (std::size_t i = 0; i < rounds[which].size(); ++i) {
      std::cout << (i == 0 ? "" : ", ") << rounds[which][i];
    }
    std::cout << ']';
  }
  std::cout << "}\n";
}
