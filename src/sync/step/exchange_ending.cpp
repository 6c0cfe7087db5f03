#include "sync/step/exchange_ending.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "job/publish.h"
#include "tutti/error.h"

namespace tutti {
namespace {

[[noreturn]] void throw_ended(EndKind kind, int culprit, const std::string& text) {
  switch (kind) {
    case EndKind::lost:
      throw PeerLost(culprit, text);
    case EndKind::timeout:
      throw Timeout(text);
    case EndKind::mismatch:
    case EndKind::running:
      break;
  }
  throw Mismatch(text);
}

}  // namespace

void ExchangeEnding::require_running() const {
  group_.state()->job().require_own();
  const auto& mine = header(group_.rank());
  const auto ended = static_cast<EndKind>(mine.ended.load(std::memory_order_relaxed));
  if (ended != EndKind::running) throw_ended(ended, mine.culprit.load(), read(mine.reason));
}

bool ExchangeEnding::is_over() const {
  return header(group_.rank()).ended.load(std::memory_order_relaxed) != 0;
}

bool ExchangeEnding::has_left(int rank) const {
  return header(rank).closed.load(std::memory_order_acquire) != 0 ||
         header(rank).ended.load(std::memory_order_acquire) != 0;
}

void ExchangeEnding::check(int rank, std::uint64_t step) const {
  const auto& other = header(rank);
  const int job_rank = group_.job_rank(rank);
  const auto blame = [&](const std::string& text) {
    group_.state()->job().rendezvous().blame(job_rank, text);
    return text;
  };
  const auto ended = static_cast<EndKind>(other.ended.load(std::memory_order_acquire));
  if (ended != EndKind::running) {
    throw_ended(ended, other.culprit.load(), blame(read(other.reason)));
  }
  const auto closed = other.closed.load(std::memory_order_acquire);
  if (closed == 0 || closed > step) return;
  // An exception that leaves the object drops a step first.
  const bool has_failed = closed > 1 && other.failed.load(std::memory_order_acquire) == closed - 1;
  const auto why = has_failed ? fmt::format(" ({})", read(other.failure)) : std::string();
  throw Mismatch(blame(
      fmt::format("step {} of \"{}\": rank {} ended its part after step {}{} and does not join{}",
                  numbers_.of(std::min(step, numbers_.done + 1)), options_.name, job_rank,
                  numbers_.of(closed - 1), why,
                  options_.end_hint.empty() ? options_.hint : options_.end_hint)));
}

bool ExchangeEnding::has_begun() const {
  return header(0).fate.load(std::memory_order_seq_cst) != StepHeader::kRunning;
}

void ExchangeEnding::check_fate() const {
  if (!has_begun() || last_success() >= numbers_.open) return;
  for (int r = 0; r < group_.size(); ++r) check(r, numbers_.open);
  TUTTI_CHECK(false, "step {} of \"{}\": the exchange has ended, but nobody ended it",
              numbers_.of(numbers_.open), options_.name);
}

bool ExchangeEnding::has_succeeded(std::uint64_t step) const {
  return has_begun() && last_success() >= step;
}

std::uint64_t ExchangeEnding::last_success() const {
  std::uint64_t all = header(0).folded.load();
  for (int r = 1; r < group_.size(); ++r) all = std::min(all, header(r).folded.load());
  decide(group_.state()->job(), header(0).fate, StepHeader::kUndecided, StepHeader::kDecided + all);
  return header(0).fate.load() - StepHeader::kDecided;
}

bool ExchangeEnding::end(EndKind kind, int culprit, const std::string& text) noexcept {
  auto& job = group_.state()->job();
  if (!job.is_own() || is_over()) return false;
  auto& mine = header(group_.rank());
  tutti::write(mine.reason, text);
  mine.culprit.store(culprit);
  publish_early(job, mine.ended, static_cast<std::uint32_t>(kind),
                {published(mine.culprit), published(mine.reason)});
  try {
    decide(job, header(0).fate, StepHeader::kRunning, StepHeader::kUndecided);
  } catch (const Error&) {
    // Nothing of this worker gets through to other hosts, nor will they wait for more of it.
  }
  publish(job, mine.left, numbers_.open);
  if (kind == EndKind::lost) job.rendezvous().blame(culprit, text);
  return true;
}

}  // namespace tutti
