#pragma once

// What a Job handle points to: identity, board, rendezvous and the watch over the others' lives.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/process_mark.h"
#include "base/system.h"
#include "job/background.h"
#include "job/hosts/host_map.h"
#include "job/local_threads.h"
#include "job/wire/board.h"
#include "job/wire/rank_set.h"
#include "job/wire/rendezvous.h"
#include "tutti/job.h"

namespace tutti {

class BlockTable;
class LifeWatch;
class Timeline;

/// The identity of this worker, given by a launcher or a test.
struct Identity {
  int rank = 0;
  int size = 1;
  int threads = 1;
  int restarts = 0;      ///< how often all workers have been started again
  std::string run = {};  ///< alike on all workers and in all attempts of a run, and nowhere else
  /// Whether torch has to be told the number of threads, because nobody has set OMP_NUM_THREADS.
  bool sets_threads = false;
  std::optional<HostMap> hosts = {};  ///< of all workers; all on this host if absent
  std::string links = {};  ///< what was asked for of links between hosts: the same on all workers
};

/// InvalidArgument, which begins with `what`, for a time that no wait can last.
void require_positive(std::chrono::milliseconds time, const char* what);

class JobState {
 public:
  /// Finds the others, maps the board, and starts to watch their lives.
  JobState(Identity identity, std::shared_ptr<System> system,
           std::shared_ptr<Rendezvous> rendezvous, JobOptions options);
  ~JobState();  // marks this worker as having left
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

  const Identity& identity() const { return identity_; }
  const JobOptions& options() const { return options_; }
  const HostMap& hosts() const { return hosts_; }
  bool spans_hosts() const { return spans_hosts_; }
  /// The memory that exists on every host of the job.
  BlockTable& blocks() const { return *blocks_; }
  /// Keeps a block known to other hosts for as long as the result lives: BlockTable::hold.
  [[nodiscard]] std::shared_ptr<void> hold_block(std::uint64_t block, const std::byte* base,
                                                 std::size_t bytes, const FileDescriptor& file);
  System& system() const { return *system_; }
  Rendezvous& rendezvous() const { return *rendezvous_; }
  /// Rendezvous::store(), counted.
  void store(std::string message, const Haste& haste = {});
  /// Bytes that this worker has given to other hosts by store().
  std::uint64_t bytes_to_hosts() const { return bytes_to_hosts_.load(std::memory_order_relaxed); }
  Board& board() const { return *board_; }
  /// The timeline of this worker; null without a profile.
  Timeline* timeline() const { return timeline_.get(); }
  WorkerSlot& slot(int rank) const { return board_->workers[static_cast<std::size_t>(rank)]; }

  /// False in a child that the worker made by fork(): it has all objects of the worker, but is not
  /// part of the job. Nothing that it calls or destroys speaks for the worker.
  bool is_own() const noexcept { return process_.is_own(); }
  /// Throws Unsupported in such a child.
  void require_own() const {
    if (!is_own()) [[unlikely]] {
      refuse_child();
    }
  }

  /// The asked time from now, or the job's. A deadline is for one wait.
  Deadline deadline(std::optional<std::chrono::milliseconds> asked = {}) const;
  /// True when more workers of this job run on the host than it has processors: then no worker
  /// spins long.
  bool crowded() const { return crowded_; }
  /// The processors that the workers of this host may keep busy, divided among them; at least 1.
  int processors_per_worker() const { return processors_per_worker_; }
  /// Rounds of polling that a wait may spend before it sleeps: some 20 µs, next to none if crowded.
  int spin_rounds() const { return spin_rounds_; }
  /// Number for the n-th thing with this name made over this set of workers: part of its rendezvous
  /// tag.
  std::uint64_t next_number(const std::string& key);
  /// True in the first call with this key: what concerns the whole job is logged once, however many
  /// objects find it.
  bool is_news(const std::string& key);

  /// Ranks that will never do anything again, and those of them that did not say good-bye. What
  /// they stored before is visible once this has returned.
  struct Gone {
    RankSet all;
    RankSet died;
  };
  Gone gone() const;
  /// The worker through which this host reached the others, where it reaches them no more because
  /// that one has ended: the first worker of the host, else rank 0. Then nothing is known of
  /// workers of other hosts, which gone() holds.
  std::optional<int> cut_off_by() const;
  /// "rank 2 ended, through which its host reaches the others"
  std::string text_of_cut(int by) const;
  /// Throws PeerLost of that worker, and blames it, where there is one: `what`, "the making of
  /// group \"x\"", fails then, whoever takes part. Workers that are cut off would otherwise resume
  /// as a job of their own, beside the others that resume without them.
  void require_hosts(const std::string& what) const;
  /// The neighbour that had the broker of this host, where it has ended and took along what these
  /// workers had told other hosts: on this one too that takes effect in the order of all
  /// (publish.h).
  std::optional<int> broker_that_lost(const RankSet& told, const Gone& gone) const;

  /// The periods of all Busy objects that live. They may overlap: the board shows the one that
  /// lasts longest.
  struct BusyPeriods {
    struct Period {
      std::uint64_t number;
      std::string what;
      Clock::time_point until;
    };
    std::mutex mutex;
    std::vector<Period> all;
    std::uint64_t last_number = 0;
  };
  BusyPeriods& busy() { return busy_; }

  LocalThreads& threads() { return threads_; }
  /// See Alone; of the calling thread. Empty: nowhere.
  std::string alone_in() const { return threads_.alone_in(); }
  /// Calls that were started and not waited for.
  Background& background() { return background_; }

 private:
  [[noreturn]] void refuse_child() const;
  void warn_if_unused() const;
  void find_others();
  void take_board(const FileDescriptor& file, bool gives);
  /// Fixes how waits spin, and a worker's part, from the processors of all workers.
  void count_processors(const std::vector<Parcel>& parcels);
  void show(WorkerSlot::State state);

  Identity identity_;
  std::shared_ptr<System> system_;
  std::shared_ptr<Rendezvous> rendezvous_;
  JobOptions options_;
  HostMap hosts_;
  bool spans_hosts_;
  std::atomic<std::uint64_t> bytes_to_hosts_{0};
  std::unique_ptr<BlockTable> blocks_;
  std::unique_ptr<Timeline> timeline_;
  std::shared_ptr<std::byte> board_memory_;
  std::shared_ptr<void> held_board_;
  Board* board_ = nullptr;
  bool crowded_ = false;
  int processors_per_worker_ = 1;
  int spin_rounds_ = 0;
  ProcessMark process_;
  LocalThreads threads_;
  Background background_;
  std::unique_ptr<LifeWatch> watch_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> numbers_;
  std::set<std::string> logged_;
  BusyPeriods busy_;
};

}  // namespace tutti
