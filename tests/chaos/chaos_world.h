#pragma once

// The workers of a case, which are threads: where they can fail, and what has become of them.
//
// Threads: any. Failure: none; see ChaosWorld::chance().

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chaos/chaos_case.h"
#include "chaos/chaos_hosts.h"
#include "support/thread_ranks.h"
#include "support/wrapped_system.h"

namespace tutti::test::chaos {

/// How a worker's program has ended.
struct Ending {
  enum class Kind { running, stopped, finished, lost, failed };
  Kind kind = Kind::running;
  int culprit = -1;  ///< of PeerLost
  std::string text;
};

class ChaosWorld {
 public:
  explicit ChaosWorld(const ChaosCase& one);
  /// What a worker does between two calls of this is one piece. Where it is this worker's turn to
  /// fail, the case's fault happens; a worker that has ended or stopped does not return.
  void chance(int rank);
  void end(int rank, Ending ending);
  /// Returns once all workers have ended that still run. False: not within the case's bound.
  bool wait();
  /// Notes that bytes are wrong.
  void wrong(int rank, const std::string& text);
  /// What is wrong with the run, or "".
  std::string verdict() const;
  /// How all workers have ended, a line each.
  std::string endings() const;

  ChaosHosts& hosts() { return *hosts_; }
  const std::shared_ptr<ThreadWorld>& threads() const { return threads_; }
  void close() { hosts_.reset(); }

 private:
  void fail_now(std::unique_lock<std::mutex>& lock);
  void stop(const RankSet& ranks);
  bool may_name(int rank, int culprit) const;
  /// Of a worker that has lost another: whether that one is who failed, or left because of it.
  bool lost_rightly(int rank) const;

  const ChaosCase& case_;
  const HostMap map_;
  std::shared_ptr<ThreadWorld> threads_;
  std::unique_ptr<ChaosHosts> hosts_;
  std::atomic<std::uint64_t> chances_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_stopped_{false};  ///< some worker has, or is to wait
  RankSet stopped_;
  bool pausing_ = false;
  bool has_failed_ = false;
  std::vector<Ending> endings_;
  std::vector<std::string> wrong_;
};

/// A worker's clock and memory. Each look at the clock is a chance.
class ChaosSystem final : public WrappedSystem {
 public:
  ChaosSystem(ChaosWorld& world, int rank)
      : WrappedSystem(std::make_shared<ThreadSystem>(world.threads(), rank)),
        world_(world),
        rank_(rank) {}
  Clock::time_point now() const override {
    world_.chance(rank_);
    return WrappedSystem::now();
  }
  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override {
    world_.chance(rank_);
    return WrappedSystem::map(file, bytes);
  }

 private:
  ChaosWorld& world_;
  int rank_;
};

}  // namespace tutti::test::chaos
