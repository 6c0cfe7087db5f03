#pragma once

// What a Job handle points to: identity, board, rendezvous and the watch over the others' lives.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/system.h"
#include "job/board.h"
#include "job/rendezvous.h"
#include "tutti/job.h"

namespace tutti {

class LifeWatch;

/// Who this worker is, as a launcher or a test says it.
struct Identity {
  int rank = 0;
  int size = 1;
  int threads = 1;
};

class JobState {
 public:
  /// Meets the others, maps the board, and starts to watch their lives.
  JobState(Identity identity, std::shared_ptr<System> system,
           std::shared_ptr<Rendezvous> rendezvous, JobOptions options);
  ~JobState();  // marks this worker as having left
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

  const Identity& identity() const { return identity_; }
  const JobOptions& options() const { return options_; }
  System& system() const { return *system_; }
  Rendezvous& rendezvous() const { return *rendezvous_; }
  Board& board() const { return *board_; }
  WorkerSlot& slot(int rank) const { return board_->workers[static_cast<std::size_t>(rank)]; }

  Deadline deadline(std::optional<std::chrono::milliseconds> asked = {}) const;
  /// True when more workers of this job run on the host than it has processors: then nobody spins
  /// long.
  bool crowded() const { return crowded_; }
  /// Number for the n-th thing with this name made over this set of workers: part of its rendezvous
  /// tag.
  std::uint64_t next_number(const std::string& key);

 private:
  Identity identity_;
  std::shared_ptr<System> system_;
  std::shared_ptr<Rendezvous> rendezvous_;
  JobOptions options_;
  std::shared_ptr<std::byte> board_memory_;
  Board* board_ = nullptr;
  bool crowded_ = false;
  std::unique_ptr<LifeWatch> watch_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> numbers_;
};

}  // namespace tutti
