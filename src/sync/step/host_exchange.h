#pragma once

// What the hosts of an exchange send one another in a step: sums of gradients (HostSums) and pieces
// of memory that one host has made, while its workers do something else. Nothing where all workers
// are on one host.
//
// Threads: that of the exchange, and one of its own. Failure: that of the protocol; a step that
// fails drops all that is under way.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "job/progress_thread.h"
#include "sync/hosts/host_sums.h"
#include "sync/nodes/node_store.h"
#include "sync/step/exchange_options.h"
#include "sync/step/step_protocol.h"

namespace tutti {

class HostExchange {
 public:
  /// Makes the links. Collective. Keeps references. `fold_ready` adds up what is ready while
  /// backward runs, in a thread, unless gradients are coded.
  HostExchange(StepProtocol& protocol, StepMemory& memory, NodeStore& nodes,
               const ExchangeOptions& options, std::function<void()> fold_ready);

  bool spans_hosts() const { return sums_ != nullptr; }
  /// Only where there are several hosts.
  HostSums& sums() { return *sums_; }
  /// Workers whose nodes this host has memory for: those of other hosts only where it folds them.
  int arenas_here() const;

  void open(std::uint64_t step);
  /// All have published, and all buckets were added: waits for the sums of what is left.
  void await_sums();
  /// How long the open step has waited for sums after its last gradient.
  double exposed_seconds() const { return std::chrono::duration<double>(exposed_).count(); }

  /// A barrier of the step after which all hosts have these pieces, alike on all, of which all that
  /// their host's workers write was written before the barrier before this one.
  void barrier(const char* what, std::span<const HostPiece> pieces);
  /// Starts to send these, alike on all hosts, to all others, which have them after barrier_sent()
  /// or await_sent(), unless drops() says something else by then. They may be written to, and read,
  /// then again. All that their host's workers write was written before the last barrier.
  void start_sending(std::span<const HostPiece> pieces);
  /// How often a step that failed has dropped all that was under way. Alike on all workers.
  std::uint64_t drops() const { return drops_; }
  /// A barrier after which this host has all of what was started.
  void barrier_sent(const char* what);
  /// Between steps, inside run_collectives(): returns when this host has it, on its first worker.
  void await_sent();
  /// What is under way ends: its memory goes.
  void cancel_sending() noexcept;

  // By the first worker of each host.
  /// Whether there is a link that send() can take.
  bool can_send() const { return sums_ && sums_->is_connected(); }
  /// Starts to send these to all others; those of a host in the same order on all.
  void send(std::span<const HostPiece> pieces) { sums_->give(pieces); }
  /// A barrier before which this worker calls `move` while it waits, and on the first worker of its
  /// host, once all have come, until it is true and all was sent. `missing`: job ranks.
  void barrier_while(const char* what, const std::function<bool()>& move,
                     const std::function<RankSet()>& missing);

  /// While gradients are coded: what a thread of this worker, the first one of its host, does
  /// between resume_background() and pause(); before that and after it `move` is the caller's. It
  /// must live until stop_background().
  void run_in_background(std::function<void()> move);
  void stop_background() noexcept { background_.reset(); }
  void resume_background() noexcept;
  /// The program's thread continues what the background thread did.
  void pause() noexcept;
  bool has_background() const { return background_.has_value(); }
  /// The step has failed.
  void drop() noexcept;

 private:
  using Arrived = StepProtocol::Arrived;
  void await_sent(const Arrived& arrived);
  void drop_if_thrown(const std::function<void()>& body);

  StepProtocol& protocol_;
  std::unique_ptr<HostSums> sums_;
  std::uint64_t drops_ = 0;
  Clock::duration exposed_{};
  std::optional<ProgressThread> background_;  ///< last, so that it ends first
};

}  // namespace tutti
