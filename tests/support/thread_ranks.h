#pragma once

// Ranks that are threads of this process: the whole of Tutti below libtorch runs so, under the
// thread sanitizer too. Every rank has its own JobState and its own System.

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/system.h"
#include "job/rendezvous/thread_rendezvous.h"
#include "support/thread_hosts.h"
#include "tutti/job.h"

namespace tutti::test {

/// What the ranks' systems share: mapped memory, and who was killed.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  /// Rank `rank` counts as ended from now on, without having left. Its thread goes on: it should do
  /// nothing but wait until the others have seen it.
  void kill(int rank);
  ThreadRendezvous& thread_rendezvous() { return rendezvous_; }
  /// From now on the ranks are on these hosts.
  void spread(const HostMap& map, const std::shared_ptr<System>& system) {
    hosts_ = std::make_unique<ThreadHosts>(map, system);
  }
  /// The hosts are over, but for their blames.
  void end_hosts() {
    if (hosts_) blames_ = hosts_->blames();
    hosts_.reset();
  }
  /// Null where all are on one.
  ThreadHosts* hosts() { return hosts_.get(); }
  std::unique_ptr<Rendezvous> rendezvous(int rank) {
    return hosts_ ? hosts_->rendezvous(rank) : rendezvous_.rendezvous(rank);
  }
  std::vector<Blame> blames() const { return blames_ ? *blames_ : rendezvous_.blames(); }

 private:
  friend class ThreadSystem;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // device and inode
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<std::byte>> maps_;
  std::vector<FileDescriptor> lives_;
  ThreadRendezvous rendezvous_;
  std::unique_ptr<ThreadHosts> hosts_;
  std::optional<std::vector<Blame>> blames_;
};

struct ThreadOptions {
  JobOptions job = {.join_deadline = std::chrono::seconds(30),
                    .deadline = std::chrono::seconds(60)};
  int threads = 1;
  /// What System::processors and memory_bounds say; the host's if absent.
  std::optional<int> processors = {};
  std::function<std::vector<MemoryBound>()> memory_bounds = {};
  /// What System::has_other_threads says.
  bool has_other_threads = false;
  /// The hosts of the ranks; as many as asked_hosts() if absent.
  std::optional<HostMap> hosts = {};
  /// Made when absent. Hand one in to kill ranks, or to read blames.
  std::shared_ptr<ThreadWorld> world = {};
  /// A run that takes longer ends the process: threads cannot be ended.
  std::chrono::seconds limit{110};
};

/// One rank's System. The same file maps to the same address in all ranks, so that a sanitizer
/// sees one memory.
class ThreadSystem final : public System {
 public:
  ThreadSystem(std::shared_ptr<ThreadWorld> world, int rank, const ThreadOptions& options = {});
  Clock::time_point now() const override { return host_->now(); }
  FileDescriptor create_memory(std::string_view name, std::size_t bytes) override;
  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override;
  FileDescriptor life_line() override;
  std::vector<MemoryBound> memory_bounds() const override;
  std::vector<MemoryBound> own_memory_bounds() const override { return {}; }
  /// As a rank is one thread, unless it says otherwise.
  bool has_other_threads() const override { return has_other_threads_; }
  std::vector<int> allowed_processors() const override;
  int processors() const override;

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<System> host_;
  int rank_;
  std::optional<int> processors_;
  std::function<std::vector<MemoryBound>()> memory_bounds_;
  bool has_other_threads_;
};

/// How each rank ended; null where it returned.
struct ThreadOutcome {
  std::vector<std::exception_ptr> errors;
  bool all_good() const;
  /// what() of a rank's error; "" if it had none.
  std::string text(int rank) const;
  /// Throws the first error that is not the echo of another (PeerLost), if there is any.
  void rethrow() const;
};

/// Runs `body` as `size` ranks and waits for all of them.
ThreadOutcome try_thread_ranks(int size, const std::function<void(Job)>& body,
                               const ThreadOptions& options = {});

/// The same, and throws what went wrong.
inline void run_thread_ranks(int size, const std::function<void(Job)>& body,
                             const ThreadOptions& options = {}) {
  try_thread_ranks(size, body, options).rethrow();
}

}  // namespace tutti::test
