#pragma once

// The steps of an exchange and the points at which its workers wait for each other. It knows no
// gradient: StepExchange has the parts that do.
//
// A step either succeeds on all live workers or fails on all. Where one worker fails at the moment
// at which the last one arrives, rank 0's board decides: a step has succeeded if all had folded
// when the exchange ended, and the first worker that finds it ended writes down whether they had.
// So a step may succeed for a worker whose deadline has passed, which gets its Timeout from the
// next step; a late worker gets the failure from its own complete().
//
// Threads: one. Failure: PeerFailed drops the step on every worker and leaves the exchange usable;
// Mismatch, PeerLost and Timeout end it: every later call on any worker repeats the error.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "comm/group_state.h"
#include "job/publish.h"
#include "sync/nodes/step_board.h"
#include "sync/step/exchange_ending.h"
#include "sync/step/exchange_options.h"
#include "tutti/group.h"

namespace tutti {

inline constexpr std::uint64_t kMaxBarriers = 16;

class StepProtocol {
 public:
  /// Tells whether a member of the group has come to a point.
  using Arrived = std::function<bool(int)>;
  struct Hooks {
    std::function<std::string()> what;  ///< what the open step waits for, in texts
    std::function<void()> pause;        ///< what runs in the background stops for now
    std::function<void()> drop;         ///< the step has failed: what is on its way ends
  };
  /// Keeps references.
  StepProtocol(const StepBoards& boards, const ExchangeOptions& options, Hooks hooks);

  const Group& group() const { return group_; }
  GroupState& state() const { return *group_.state(); }
  JobState& job() const { return state().job(); }
  StepHeader& header(int rank) const { return boards_.of(rank).header(); }
  StepHeader& own_header() const { return header(group_.rank()); }
  const StepNumbers& numbers() const { return numbers_; }
  /// The open step.
  std::uint64_t step() const { return numbers_.open; }
  std::int64_t number() const { return numbers_.of(numbers_.open); }
  std::int64_t last_number() const { return numbers_.of(numbers_.done); }
  std::string step_text() const;
  bool is_open() const { return mode_.has_value(); }
  std::optional<StepMode> mode() const { return mode_; }
  /// Sets the number of the next step in texts and reports; later ones follow it. By default steps
  /// are counted from 1.
  void number_next(std::int64_t number);
  const ExchangeEnding& ending() const { return ending_; }
  /// Throws what ended the exchange, if it is over.
  void require_running() const { ending_.require_running(); }

  // ---- collectives besides steps ----

  /// Runs collectives of the group besides steps: an error that ends the group ends the exchange. A
  /// worker that has ended its part of the exchange does not take part in them: the others notice
  /// at once.
  void run_collectives(const std::function<void()>& collectives);
  /// Runs collectives of `group`, which has the same members, in an open step: a worker that has
  /// ended its part is noticed at once. What they throw is the caller's to handle.
  void watch_collectives(const Group& group, const std::function<void()>& collectives);
  /// Runs `body`; an error that it throws ends the step or the exchange for all. A check that
  /// throws Mismatch has to come out alike on all workers. `hint` ends the text of a Timeout.
  void guarded(const std::function<void()>& body, const std::string& hint);
  void guarded(const std::function<void()>& body) { guarded(body, options_.hint); }

  // ---- a step ----

  /// Begins the next step: waits until no worker reads what the last one left.
  void begin();
  /// Opens it, and tells the others of this worker's part.
  void open(StepMode mode, std::int64_t declared, double weight, bool drained,
            std::uint64_t schedule);
  /// Runs `work`, this worker's part; returns when all workers have finished theirs.
  void complete(const std::function<void()>& work);
  void close(bool has_succeeded);
  /// Drops the open step, or the next one, on all workers: they get PeerFailed with this text.
  void fail(const std::string& text) noexcept;
  /// Tells the others that this worker takes part in no further step.
  void leave() noexcept;
  /// This worker has waited so often, and so long, in the open step.
  int waits() const { return waits_; }
  double wait_seconds() const { return std::chrono::duration<double>(waited_).count(); }

  // ---- meeting within a step ----

  /// Errors report that `phase` ("apply() in") of the step was not reached.
  void come_to(const char* phase) { phase_ = phase; }
  /// Returns when all workers have called it as often in this step: less than kMaxBarriers times.
  /// The first worker of each of several hosts comes after `before`.
  void barrier(const char* what, const std::function<void(const Arrived&)>& before = {});
  /// The number of the next barrier in the open step, and who has come to it.
  std::uint64_t next_barrier() { return numbers_.open * kMaxBarriers + ++barriers_; }
  Arrived at_barrier(std::uint64_t round) const;
  /// Lets workers that await_post() of this one read what it has written for them in the open step.
  /// No worker may still be reading what it wrote in an earlier step.
  void post();
  /// Returns when the worker has called post(). Errors report that `what` ("the audited shard of")
  /// the step was not reached.
  void await_post(int rank, const char* what);
  /// Publishes a step counter that every member sets to this value before any of them continues.
  void tell_all(std::atomic<std::uint64_t> StepHeader::*word, std::uint64_t value,
                std::initializer_list<PublishedData> data = {});
  /// Returns when arrived(r) holds for every member; calls `progress` meanwhile.
  void wait_for_all(const Arrived& arrived, const std::function<void()>& progress = {});
  /// Returns when ready() holds; `missing` are the job ranks that it waits for, and arrived(r)
  /// holds for a member that cannot fail the step any more. `needs_calls`: as in WaitSubject.
  void wait_for(const std::function<bool()>& ready, const std::function<RankSet()>& missing,
                const Arrived& arrived, bool needs_calls = false);

 private:
  void check_peers(const Arrived& arrived);
  void end(EndKind kind, int culprit, const std::string& text) noexcept;
  std::string hint_without_gradient() const;

  const Group& group_;
  const StepBoards& boards_;
  const ExchangeOptions& options_;
  Hooks hooks_;
  StepNumbers numbers_;
  ExchangeEnding ending_;
  const char* phase_ = "";  ///< the point that workers wait for each other to reach
  bool is_completing_ = false;
  std::optional<StepMode> mode_;
  std::uint64_t barriers_ = 0;  ///< of this step
  Clock::time_point opened_at_;
  Clock::duration waited_{};
  int waits_ = 0;
};

}  // namespace tutti
