#include "sync/step/host_exchange.h"

#include <utility>

#include "base/timeline.h"

namespace tutti {

HostExchange::HostExchange(StepProtocol& protocol, StepMemory& memory, NodeStore& nodes,
                           const ExchangeOptions& options, std::function<void()> fold_ready)
    : protocol_(protocol) {
  // The first workers of hosts make links: the others hear of it where they cannot.
  protocol_.guarded([&] {
    sums_ = HostSums::make(memory, nodes,
                           {.name = options.name,
                            .wanted =
                                [&](std::uint32_t p) {
                                  return !options.coded ||
                                         !nodes.plan().parameters()[p].is_partitioned();
                                },
                            .deadline = options.deadline});
  });
  if (sums_ && !options.coded) background_.emplace(protocol_.job(), std::move(fold_ready));
}

int HostExchange::arenas_here() const {
  return sums_ ? protocol_.state().team().size() : protocol_.group().size();
}

void HostExchange::open(std::uint64_t step) {
  exposed_ = {};
  if (sums_) sums_->open(step);
}

void HostExchange::await_sums() {
  sums_->connect();
  sums_->close();
  const auto begin = protocol_.job().system().now();
  // A worker that has folded already, and ends now, takes its end of the link along: none is
  // excused.
  protocol_.wait_for([&] { return sums_->progress(); }, [&] { return sums_->missing(); },
                     [](int) { return false; });
  exposed_ = protocol_.job().system().now() - begin;
}

void HostExchange::barrier(const char* what, std::span<const HostPiece> pieces) {
  protocol_.barrier(what, [&](const Arrived& arrived) {
    if (pieces.empty()) return;
    start_sending(pieces);
    await_sent(arrived);
  });
}

void HostExchange::start_sending(std::span<const HostPiece> pieces) {
  if (protocol_.state().team().rank != 0) return;
  protocol_.guarded([&] {
    drop_if_thrown([&] {
      sums_->connect();
      sums_->give(pieces);
    });
  });
}

void HostExchange::barrier_sent(const char* what) {
  protocol_.barrier(what, [&](const Arrived& arrived) { await_sent(arrived); });
}

void HostExchange::await_sent(const Arrived& arrived) {
  const TimelineSpan span(protocol_.job().timeline(), "pieces of hosts");
  drop_if_thrown([&] {
    protocol_.wait_for([&] { return sums_->has_given(); }, [&] { return sums_->missing_pieces(); },
                       arrived);
  });
}

void HostExchange::await_sent() {
  if (protocol_.state().team().rank != 0) return;
  protocol_.come_to("what was given in");
  protocol_.guarded([&] { await_sent([](int) { return true; }); });
}

void HostExchange::cancel_sending() noexcept {
  if (sums_ && protocol_.job().is_own()) sums_->drop();
}

void HostExchange::barrier_while(const char* what, const std::function<bool()>& move,
                                 const std::function<RankSet()>& missing) {
  protocol_.require_running();
  protocol_.come_to(what);
  protocol_.guarded([&] {
    const auto round = protocol_.next_barrier();
    const auto arrived = protocol_.at_barrier(round);
    protocol_.tell_all(&StepHeader::barrier, round);
    if (protocol_.state().team().rank != 0) return protocol_.wait_for_all(arrived);
    drop_if_thrown([&] {
      protocol_.wait_for_all(arrived, move);
      sums_->connect();
      const auto late = [&] { return missing() | sums_->missing_pieces(); };
      // One that failed meanwhile has come, too.
      protocol_.wait_for([&] { return move() && sums_->has_given(); }, late,
                         [&](int r) { return !late().contains(protocol_.group().job_rank(r)); });
    });
  });
}

/// The memory of what is under way may go then.
void HostExchange::drop_if_thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    sums_->drop();
    throw;
  }
}

void HostExchange::run_in_background(std::function<void()> move) {
  background_.emplace(protocol_.job(), std::move(move));
}

void HostExchange::resume_background() noexcept {
  if (background_) background_->resume();
}

void HostExchange::pause() noexcept {
  if (background_) background_->pause();
}

void HostExchange::drop() noexcept {
  if (sums_) sums_->drop();
  ++drops_;
}

}  // namespace tutti
