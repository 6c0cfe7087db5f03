#pragma once

// The step protocol of data-parallel gradients on one host. A step is a fixed list of leaves; every
// worker folds its own (LeafFolder), publishes what is left, folds its slices of all nodes
// (SliceFold), and finds the reduced gradients in its own arena.
//
//   open → leaves … → arrive: publish │ wait for all → complete: fold_slices() │ wait for all
//
// In a step of one backward (one leaf per worker) buckets are published and folded while backward
// still runs. Where workers are on several hosts, so they are in the last leaf of a worker that has
// told how many it has: hosts then add them up meanwhile, by a thread that is not the program's,
// because a layer's backward may take long and call nobody.
//
// A step either succeeds on all live workers or fails on all. Where one worker fails at the moment
// at which the last one arrives, rank 0's board decides: a step has succeeded if all had folded
// when the exchange ended, and the first worker that finds it ended writes down whether they had.
// So a step may succeed for a worker whose deadline has passed, which gets its Timeout from the
// next step; a late worker gets the failure from its own complete().
//
// Threads: one, and one of its own where hosts add up. Failure: PeerFailed drops the step on every
// worker and leaves the exchange usable; Mismatch, PeerLost and Timeout end it: every later call on
// any worker repeats the error.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group_state.h"
#include "job/progress_thread.h"
#include "job/publish.h"
#include "sync/hosts/host_sums.h"
#include "sync/nodes/node_store.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/bucket_schedule.h"
#include "sync/plan/plan.h"
#include "sync/step/digest_check.h"
#include "sync/step/first_look.h"
#include "tutti/group.h"
#include "tutti/step_report.h"

namespace tutti {

inline constexpr std::uint64_t kMaxBarriers = 16;

struct ExchangeOptions {
  std::string name = {};  ///< in errors: what is trained
  Divisor divisor = Divisor::weights;
  std::int64_t fusion = std::int64_t{25} << 18;  ///< elements: of a bucket (fusion.h)
  std::int64_t first_fusion = std::int64_t{1} << 18;
  /// Every worker's nodes end where one of these leaves begins: ascending.
  std::vector<std::int64_t> node_boundaries = {};
  /// So many neighbouring ranks compute the same shards together, each with a part of the
  /// parameters, and call open_shards() alike.
  int workers_per_shard = 1;
  /// Per parameter, the rank in the group of the one worker that updates it; −1: all share it.
  /// Empty: all share all.
  std::vector<int> owners = {};
  /// The gradients become messages first: nothing is folded before arrive().
  bool coded = false;
  /// One worker's buffers replace those of all at the end of each step: see buffer_source().
  bool sync_buffers = true;
  StaysHere stays = {};  ///< of compressed and per-replica gradients
  /// Compare digests of parameters and buffers, and modes of modules, in the first steps and in
  /// every n-th; 0 never.
  std::int64_t desync_check_every = 100;
  /// Number of modules of the model, and the name of the k-th in errors.
  std::size_t modules = 0;
  std::function<std::string(std::size_t k)> module_name = {};
  /// write() returns the magnitude of what was written.
  bool reports_magnitude = false;
  std::optional<std::chrono::milliseconds> deadline = {};
  /// Ends the text of an error about workers that do not come: it names what their program may have
  /// missed.
  std::string hint = {};
  /// The same where that worker has ended its part.
  std::string end_hint = {};
  /// Ends the text of a Timeout or Mismatch in a step in which this worker has no gradient.
  std::string hint_without_gradient = {};
  /// complete()'s work cannot be undone: a worker that fails meanwhile ends the exchange.
  bool updates_in_place = false;
};

class StepExchange {
 public:
  /// Compares plans and allocates. Collective.
  StepExchange(Group group, Plan plan, const ExchangeOptions& options);
  /// Tells the others that this worker takes part in no further step.
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  const Plan& plan() const { return nodes_.plan(); }
  const Group& group() const { return group_; }
  const ExchangeOptions& options() const { return options_; }
  /// This worker's nodes while a step is open; those of all between arrive() and complete().
  NodeStore& nodes() { return nodes_; }
  const NodeStore& nodes() const { return nodes_; }
  /// The rank in the group of the one worker that updates the parameter; −1: all share it.
  int owner_of(std::size_t parameter) const {
    return options_.owners.empty() ? -1 : options_.owners[parameter];
  }
  /// Steps that are over, successful or dropped.
  std::int64_t steps_done() const { return static_cast<std::int64_t>(done_); }
  bool is_open() const { return mode_.has_value(); }
  /// The number of the open step, and of the last one that is over: see number_next().
  std::int64_t number() const { return number_of(step_); }
  std::int64_t last_number() const { return number_of(done_); }
  /// The open step is one backward's.
  bool is_one_backward() const { return mode_ == StepMode::one_backward; }
  /// Throws what ended the exchange, if it is over.
  void require_running() const;
  /// Runs collectives of the group besides steps: an error that ends the group ends the exchange. A
  /// worker that has ended its part of the exchange does not take part in them: the others notice
  /// at once.
  void run_collectives(const std::function<void()>& collectives);
  /// Runs collectives of `group`, which has the same members, in an open step: a worker that has
  /// ended its part is noticed at once. What they throw is the caller's to handle.
  void watch_collectives(const Group& group, const std::function<void()>& collectives);
  /// Sets the number of the next step in texts and reports; later ones follow it. By default steps
  /// are counted from 1.
  void number_next(std::int64_t number);

  /// Opens a step of one leaf, at once begun, for a single backward. In a group of one the mean is
  /// that leaf: it is neither multiplied by its weight nor divided.
  void open_one_backward(double weight);
  /// Opens a step of any number of leaves; given the number, nodes are folded as leaves come.
  void open_scope(std::optional<std::int64_t> leaves);
  /// Opens a step of which this worker's leaves are the given range, ended by arrive().
  void open_shards(std::int64_t first, std::int64_t leaves);
  /// Opens a step without a gradient. `weight` still counts in the divisor.
  void open_without_gradient(double weight, bool drained);

  void begin_leaf(double weight);
  /// See LeafFolder::write. In a step of one backward, `last` is what lets a bucket leave.
  double write(std::size_t parameter, const void* gradient, bool last, bool may_stay = false);
  /// The same for a row-sparse parameter.
  double write(std::size_t parameter, const RowEntries& entries, bool last);
  /// See LeafFolder::lend; while a step is open.
  std::unique_ptr<SlotLoan> lend(std::size_t parameter) { return nodes_.leaves().lend(parameter); }
  bool finished(std::size_t parameter) const { return nodes_.leaves().finished(parameter); }
  void end_leaf();
  /// Index of the next leaf among those of all workers; waits for the workers before this one to
  /// say how many they have.
  std::int64_t next_leaf();

  struct Outcome {
    std::vector<std::uint8_t> touched;  ///< per parameter: some worker wrote it
    int drained = 0;                    ///< workers that have no more data
    int buffer_source = 0;              ///< rank in the group whose buffers count
    /// Per buffer: take_buffers() has given it other bytes.
    std::vector<std::uint8_t> changed_buffers;
    StepReport report;
  };
  /// The open step compares digests, so that `modes` of its ModelMemory are looked at.
  bool looks_closely() const { return digests_.due(step_); }
  FirstLook& first_look() { return first_look_; }

  // The one sync of a step is in two parts, by all workers alike; sources of gradients
  // (gradient_source.h) are asked between them, and inside the second.
  /// Publishes what this worker has, waits until all have done so, and compares digests where they
  /// are due. In a step of one backward, buckets are folded while it waits.
  void arrive(const ModelMemory& model);
  /// Inside complete(), unless gradients are coded: folds what is left of this worker's slices of
  /// the partitioned parameters. The reduced gradients then lie at nodes().result(p).
  void fold_slices();
  /// The rank in the group whose buffers count in the published step: the lowest that had a leaf of
  /// a weight above 0, because a worker without data has old buffers, or those of no rows; where
  /// none had, the lowest that had a leaf; 0 if none had.
  int buffer_source() const;
  /// Replaces this worker's buffers by the source's, inside complete(), where buffers are
  /// synchronised and differ.
  void take_buffers(const ModelMemory& model);
  /// Notes, inside complete(), that the model's buffers are now equal on all workers.
  void note_buffers(const ModelMemory& model);
  /// Returns when all workers have called it as often in this step: less than kMaxBarriers times.
  /// Errors report that `what` ("apply() in") of the step was not reached.
  void barrier(const char* what) { barrier(what, {}); }
  /// The same where afterwards all hosts have these pieces, alike on all, of which all that their
  /// host's workers write was written before the barrier before this one.
  void barrier(const char* what, std::span<const HostPiece> pieces);

  // Between hosts what one host has can travel while the workers do something else.
  bool spans_hosts() const { return sums_ != nullptr; }
  /// Begins to give these, alike on all hosts, to all others, which have them after barrier_given()
  /// or await_given(): unless links_dropped() says something else by then. They may be written to,
  /// and read, then again. All that their host's workers write was written before the last barrier.
  void begin_giving(std::span<const HostPiece> pieces);
  /// How often a step that failed has dropped all that was under way. Alike on all workers.
  std::uint64_t links_dropped() const { return links_dropped_; }
  /// A barrier after which this host has all of what was begun.
  void barrier_given(const char* what);
  /// Between steps, inside run_collectives(): returns when this host has it, on its first worker.
  void await_given();
  /// What is under way ends: its memory goes.
  void give_no_more() noexcept {
    if (sums_ && state_.job().is_own()) sums_->drop();
  }

  // What one host makes of a step travels while the others make theirs, by the first worker of each
  // host.
  /// While gradients are coded, what a thread of this worker, the first one of its host, does
  /// between resume_meanwhile() and arrive(); before that and after it `move` is the caller's. It
  /// must live until move_no_more().
  void move_meanwhile(std::function<void()> move) {
    meanwhile_.emplace(state_.job(), std::move(move));
  }
  void move_no_more() noexcept { meanwhile_.reset(); }
  void resume_meanwhile() noexcept {
    if (meanwhile_) meanwhile_->resume();
  }
  /// Whether there is a link that give() can take.
  bool can_give() const { return sums_ && sums_->is_connected(); }
  /// Begins to give these to all others; those of a host in the same order on all.
  void give(std::span<const HostPiece> pieces) { sums_->give(pieces); }
  /// A barrier before which this worker calls `move` while it waits, and on the first worker of its
  /// host, once all have come, until it is true and all was given. `missing`: job ranks.
  void barrier_while(const char* what, const std::function<bool()>& move,
                     const std::function<RankSet()>& missing);
  /// Lets workers that hear() this one read what it has written for them in the open step. No
  /// worker may still be reading what it wrote in an earlier step.
  void tell();
  /// Returns when the worker has called tell(). Errors report that `what` ("the audited shard of")
  /// the step was not reached.
  void hear(int rank, const char* what);
  /// Runs a check that comes out alike on all workers: where it throws Mismatch, the exchange ends.
  void require_alike(const std::function<void()>& check) { guarded(check); }
  /// Runs `work`, this worker's part; returns when all workers have finished theirs.
  const Outcome& complete(const std::function<void()>& work);

  /// Drops the open step, or the next one, on all workers: they get PeerFailed with this text.
  void fail(const std::string& text) noexcept;

  /// Ends this worker's part: it takes part in no further step, and its model is as its last update
  /// left it. Does not wait. Where the model differs from those of workers that have parted before,
  /// one of them gets a text that tells how.
  std::optional<std::string> leave(const ModelMemory& model) noexcept;

 private:
  void open(StepMode mode, std::int64_t declared, double weight, bool drained);
  void note_write(std::size_t parameter, bool last);
  int arenas_here() const;
  void require_room(std::int64_t leaves, std::int64_t cuts);
  void find_start(bool wait);
  void publish(const ModelMemory& model);
  void publish_bucket(std::size_t bucket);
  bool completes_buckets() const;
  bool leave_in_buckets() const;
  std::unique_ptr<BucketSchedule> schedule_of(std::span<const std::uint32_t> order) const;
  bool has_leaf(int rank) const;
  bool has_weight(int rank) const;
  bool may_be_source() const;
  bool all_drained() const;
  void compare_modes() const;
  void collect_nodes();
  void fold_ready_buckets();
  void fold_bucket(std::size_t bucket);
  bool is_ready(std::size_t bucket) const;
  void sum_ready_buckets();
  void sum_over_hosts();
  void take_sums_back() noexcept;
  void adopt_order();
  void fill_outcome();
  void close_step(bool has_succeeded);

  // Waiting and failing: step_exchange_failure.cpp.
  using Arrived = std::function<bool(int)>;
  /// Publishes a step counter that every member sets to this value before any of them gets on.
  void tell_all(std::atomic<std::uint64_t> StepHeader::*word, std::uint64_t value,
                std::initializer_list<PublishedData> data = {});
  /// Returns when arrived(r) holds for every member; calls `progress` meanwhile.
  void wait_for_all(const Arrived& arrived, const std::function<void()>& progress = {});
  /// Returns when ready() holds; `missing` are the job ranks that it waits for, and arrived(r)
  /// holds for a member that cannot fail the step any more. `needs_calls`: as in WaitSubject.
  void wait_for(const std::function<bool()>& ready, const std::function<RankSet()>& missing,
                const Arrived& arrived, bool needs_calls = false);
  /// To that barrier.
  Arrived come_to(std::uint64_t round);
  void check_peers(const Arrived& arrived);
  /// A barrier to which the first worker of each of several hosts comes after that.
  void barrier_after(const char* what, const std::function<void(const Arrived&)>& before);
  void give_to_hosts(std::span<const HostPiece> pieces, const Arrived& arrived);
  void await_given(const Arrived& arrived);
  void drop_if_thrown(const std::function<void()>& body);
  void drop_link() noexcept;
  /// Throws where that worker does not take part in this step, nor in later ones.
  void check_over(int rank, std::uint64_t step);
  /// Throws where the exchange has ended before the open step has succeeded.
  void check_fate();
  /// The last step that succeeded: once the exchange has ended, the same on all workers.
  std::uint64_t last_success();
  /// Runs `body`; an error that it throws ends the step or the exchange for all. `hint` ends the
  /// text of a Timeout.
  void guarded(const std::function<void()>& body, const std::string& hint);
  void guarded(const std::function<void()>& body) { guarded(body, options_.hint); }
  void end(EndKind kind, int culprit, const std::string& text) noexcept;
  std::int64_t number_of(std::uint64_t step) const {
    return static_cast<std::int64_t>(step) + numbers_begin_;
  }
  std::string step_text() const;
  std::string what_is_waited_for() const;
  std::string hint_without_gradient() const;
  std::string mode_texts() const;
  StepHeader& header(int rank) const { return nodes_.board_of(rank).header(); }
  NodeStore::Options store_options();

  Group group_;
  GroupState& state_;
  ExchangeOptions options_;
  NodeStore nodes_;
  std::unique_ptr<HostSums> sums_;  ///< where hosts add up what they have
  SliceFold slices_;
  DigestCheck digests_;
  FirstLook first_look_;
  std::unique_ptr<BucketSchedule> schedule_;
  bool order_agreed_ = false;
  std::int64_t roomy_for_ = 1;  ///< leaves whose nodes were found to fit

  std::uint64_t done_ = 0;
  std::uint64_t step_ = 0;  ///< the open step
  std::int64_t numbers_begin_ = 0;
  const char* phase_ = "";  ///< the point that workers wait for each other to reach
  bool is_completing_ = false;
  bool is_alone_ = false;  ///< the open step is one backward's of a group of one
  std::optional<StepMode> mode_ = {};
  std::vector<std::uint32_t> fired_;       ///< first writes of this step, in order
  std::vector<std::uint32_t> unfired_in_;  ///< per bucket: parameters that have not fired yet
  std::size_t next_bucket_ = 0;            ///< first bucket whose slice is not folded yet
  std::size_t next_summed_ = 0;            ///< first bucket that hosts have not begun to add up
  bool collected_ = false;                 ///< nodes_ has those of all workers
  std::uint64_t barriers_ = 0;             ///< of this step
  std::uint64_t links_dropped_ = 0;
  Clock::time_point opened_at_;
  Clock::duration waited_{};
  Clock::duration exposed_{};  ///< StepReport::exposed_seconds
  int waits_ = 0;
  Outcome outcome_;
  /// Adds up what is ready while backward runs: sums_, collected_, next_summed_ and what nodes_ has
  /// of all workers are its own meanwhile, and step_ stays. Last, so that it ends first.
  std::optional<ProgressThread> meanwhile_;
};

}  // namespace tutti
