#include "job/wait.h"

#include <sched.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "job/deadlock.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kYields = 4;
/// The first sleep: what ends within it is not worth a notice.
constexpr std::chrono::milliseconds kFirstSlice{1};
constexpr std::chrono::milliseconds kSlice{100};
/// A wait that lasts longer checks whether this worker could still do something else.
constexpr std::chrono::milliseconds kLastingWait{100};
/// Events for others wake this wait too; checking the peers each time would be too expensive.
constexpr std::chrono::milliseconds kLookInterval{10};
/// The most time of one stop that counts, besides a quarter of the deadline. A wait checks its
/// peers every kSlice; where much more time has passed, this process did not run (it was stopped,
/// perhaps with all others), which tells nothing about its peers.
constexpr std::chrono::seconds kMaxCounted{1};
/// The same for a program that polls: between two polls it may have done something else.
constexpr std::chrono::seconds kMaxCountedOfPolls{5};
constexpr std::chrono::milliseconds kLeastCounted = 2 * kSlice;
constexpr int kStopsInDeadline = 4;

std::int64_t count_of(Clock::time_point time) { return time.time_since_epoch().count(); }

}  // namespace

class SlowWait {
 public:
  SlowWait(JobState& job, const std::function<bool()>& ready, const WaitSubject& subject)
      : job_(job), ready_(ready), subject_(subject), deadlocks_(job) {}
  /// Starts the clock.
  void begin(Clock::time_point since);
  /// Checks a wait that sleeps elsewhere; returns false once the time is up.
  bool watch();
  /// Checks a wait that polls; throws once the time is up, or a peer has ended.
  void check();
  ~SlowWait() {
    if (!showing_) return;
    deadlocks_.hide();
    job_.threads().release_notice();
  }
  SlowWait(const SlowWait&) = delete;
  SlowWait& operator=(const SlowWait&) = delete;

  void run();

 private:
  WorkerSlot& mine() const { return job_.slot(job_.identity().rank); }
  RankSet others_of(const RankSet& ranks) const {
    return (ranks & RankSet::below(job_.identity().size)) - RankSet{job_.identity().rank};
  }
  bool poll_peers();
  /// Shows what is missing and counts the time since the last look. Returns who is late.
  RankSet count_time(Clock::time_point now);
  void show(Clock::time_point evaluated);
  std::string there(const RankSet& without = {}) const;
  /// Text on who passes on what ranks of other hosts tell: "; rank 2 passes on …".
  std::string way_from(const RankSet& ranks) const;
  [[noreturn]] void throw_lost(const JobState::Gone& gone, const RankSet& lost) const;
  /// The same where those that are lost are on hosts that this one is cut off from.
  [[noreturn]] void throw_out_of_reach(int by, const RankSet& lost) const;
  [[noreturn]] void throw_timeout(const RankSet& late) const;
  /// Throws where what is missing was told to a broker that has ended before it passed it on.
  void throw_if_cut_off(const JobState::Gone& gone) const;
  void throw_on_deadlock();
  /// The lowest rank among those that wait for the same speaks for all.
  bool is_said_by_another(const RankSet& late) const;
  void notice_stall(const RankSet& late, Clock::time_point now);

  JobState& job_;
  const std::function<bool()>& ready_;
  const WaitSubject& subject_;
  DeadlockWatch deadlocks_;
  Clock::time_point start_;
  Clock::time_point looked_;
  Clock::duration counted_{};  ///< time that counts against the deadline
  Clock::duration allowed_{};
  Clock::duration next_notice_{};
  RankSet missing_;
  bool showing_ = false;
  bool sleeps_elsewhere_ = false;
  bool polls_ = false;
};

void SlowWait::begin(Clock::time_point since) {
  start_ = looked_ = since;
  const bool endless = subject_.deadline.at == Clock::time_point::max();
  allowed_ = endless ? Clock::duration::max() : subject_.deadline.at - start_;
  next_notice_ = job_.options().stall_notice;
}

void SlowWait::run() {
  const Sleeper sleeper(job_.board(), mine());
  begin(job_.system().now());
  Clock::duration slice = std::min<Clock::duration>(kFirstSlice, allowed_);
  while (true) {
    const std::uint32_t event = job_.board().event.load(std::memory_order_acquire);
    job_.background().progress();
    if (ready_()) return;
    if (subject_.check) subject_.check();
    futex_wait(job_.board().event, event, slice);
    if (ready_()) return;
    const auto unlooked = job_.system().now() - looked_;
    if (unlooked < std::min<Clock::duration>(slice, kLookInterval)) {
      slice = kLookInterval - unlooked;  // the event may have been the end of a worker
      continue;
    }
    if (poll_peers()) return;
    slice = std::clamp<Clock::duration>(std::min(allowed_, next_notice_) - counted_, kFirstSlice,
                                        kSlice);
  }
}

/// True when the wait is over.
bool SlowWait::poll_peers() {
  // This order ensures that what a worker did before it ended is seen below, and that `now` is not
  // later than the moment at which something was found missing.
  const JobState::Gone gone = job_.gone();
  const auto now = job_.system().now();
  if (ready_()) return true;
  if (subject_.check) subject_.check();
  missing_ = others_of(subject_.missing());
  if (const RankSet lost = missing_ & gone.all; !lost.empty()) {
    if (ready_()) return true;
    throw_lost(gone, lost);
  }
  throw_if_cut_off(gone);
  const RankSet late = count_time(now);
  throw_on_deadlock();
  if (counted_ >= allowed_) throw_timeout(late);
  if (counted_ >= next_notice_ && !late.empty()) notice_stall(late, now);
  return false;
}

bool SlowWait::watch() {
  sleeps_elsewhere_ = true;
  const auto now = job_.system().now();
  missing_ = others_of(subject_.missing());
  const RankSet late = count_time(now);
  if (counted_ >= allowed_) return false;
  if (counted_ >= next_notice_ && !late.empty()) notice_stall(late, now);
  return true;
}

void SlowWait::check() {
  polls_ = true;
  const JobState::Gone gone = job_.gone();
  const auto now = job_.system().now();
  missing_ = others_of(subject_.missing());
  if (const RankSet lost = missing_ & gone.all; !lost.empty()) throw_lost(gone, lost);
  throw_if_cut_off(gone);
  const RankSet late = count_time(now);
  if (missing_.empty()) return;
  if (counted_ >= allowed_) throw_timeout(late);
  if (counted_ >= next_notice_ && !late.empty()) notice_stall(late, now);
}

RankSet SlowWait::count_time(Clock::time_point now) {
  if (!polls_) show(now);
  const RankSet late = not_excused(job_, missing_, now);
  if (!late.empty() || missing_.empty()) {
    const Clock::duration most = std::clamp<Clock::duration>(
        allowed_ / kStopsInDeadline, kLeastCounted, polls_ ? kMaxCountedOfPolls : kMaxCounted);
    counted_ += std::min(now - looked_, most);
  }
  looked_ = now;
  return late;
}

void SlowWait::show(Clock::time_point evaluated) {
  if (!showing_) {
    if (!job_.threads().take_notice()) return;
    showing_ = true;
  }
  // Counting the process' threads is expensive, so only a long wait does it.
  const bool alone = subject_.needs_calls && !sleeps_elsewhere_ &&
                     evaluated - start_ >= kLastingWait && !job_.threads().are_several() &&
                     !job_.system().has_other_threads();
  deadlocks_.show({.state = alone ? NoticeView::waiting : NoticeView::shared,
                   .since = count_of(start_),
                   .evaluated = count_of(evaluated),
                   .missing = missing_},
                  subject_.what);
}

std::string SlowWait::there(const RankSet& without) const {
  return ranks_text((subject_.members | RankSet{job_.identity().rank}) - missing_ - without,
                    "is there", "are there");
}

std::string SlowWait::way_from(const RankSet& ranks) const {
  const RankSet& here = job_.hosts().neighbours(job_.identity().rank);
  if (here.first() == job_.identity().rank || (ranks - here).empty()) return {};
  return fmt::format("; rank {} passes on what is told of {}", here.first(),
                     ranks_text(ranks - here));
}

void SlowWait::throw_lost(const JobState::Gone& gone, const RankSet& lost) const {
  const RankSet& here = job_.hosts().neighbours(job_.identity().rank);
  const auto cut_off_by = job_.cut_off_by();
  if (cut_off_by && !((lost & gone.died) - here).empty()) throw_out_of_reach(*cut_off_by, lost);
  const RankSet died = lost & gone.died;
  const int culprit = (died.empty() ? lost : died).first();
  RankSet elsewhere = (subject_.members & gone.died) - lost;
  if (cut_off_by) elsewhere &= here;
  const auto also = elsewhere.empty() ? "" : fmt::format("; {} ended", ranks_text(elsewhere));
  const auto text = fmt::format("{} {} before reaching {} (it was waited for by rank {}; {}{})",
                                ranks_text(died.empty() ? lost : died),
                                died.empty() ? "left the job in an orderly way" : "ended",
                                subject_.what(), job_.identity().rank, there(elsewhere), also);
  job_.rendezvous().blame(culprit, text);
  throw PeerLost(culprit, text);
}

void SlowWait::throw_out_of_reach(int by, const RankSet& lost) const {
  const std::string text = fmt::format(
      "{}, before {} {} (it was waited for by rank {}; {})", job_.text_of_cut(by),
      missing_.contains(by) ? "reaching"
                            : ranks_text(lost, "was known to reach", "were known to reach"),
      subject_.what(), job_.identity().rank, there());
  job_.rendezvous().blame(by, text);
  throw PeerLost(by, text);
}

void SlowWait::throw_if_cut_off(const JobState::Gone& gone) const {
  const int self = job_.identity().rank;
  const RankSet untold = missing_.empty() ? RankSet{self} : missing_;
  const auto first = job_.broker_that_lost(untold, gone);
  if (!first || ready_()) return;
  const std::string text =
      fmt::format("{}, before all knew of {} in {} (it was waited for by rank {})",
                  job_.text_of_cut(*first), ranks_text(untold), subject_.what(), self);
  job_.rendezvous().blame(*first, text);
  throw PeerLost(*first, text);
}

void SlowWait::throw_timeout(const RankSet& late) const {
  const bool is_on_its_way = late.empty() && !subject_.passed_on_by.empty();
  const RankSet& named = is_on_its_way ? subject_.passed_on_by : late;
  const std::string text =
      fmt::format("{} not {} {} within {} ({}){}{}", ranks_text(named, "has", "have"),
                  is_on_its_way ? "passed on" : "reached", subject_.what(), seconds_text(counted_),
                  there(), way_from(named), doings_of(job_, named));
  if (!named.empty()) job_.rendezvous().blame(named.first(), text);
  throw Timeout(text);
}

void SlowWait::throw_on_deadlock() {
  if (!showing_) return;
  const auto cycle = deadlocks_.proven_cycle();
  if (!cycle) return;
  const std::string text =
      fmt::format("workers wait for one another: {}", deadlocks_.describe(*cycle));
  deadlocks_.linger();
  throw Mismatch(text);
}

bool SlowWait::is_said_by_another(const RankSet& late) const {
  for (const int rank : others_of(subject_.members - missing_).ranks()) {
    if (rank > job_.identity().rank) break;
    const NoticeView notice = read(job_.slot(rank).notice);
    if (notice.in_wait() && (notice.missing & late) == late) return true;
  }
  return false;
}

void SlowWait::notice_stall(const RankSet& late, Clock::time_point now) {
  while (next_notice_ <= counted_) next_notice_ *= 2;
  if (is_said_by_another(late)) return;
  const auto end = allowed_ == Clock::duration::max()
                       ? std::string()
                       : fmt::format("gives up at {}; ", seconds_text(allowed_));
  log().warn("{} not reached {} ({}; {}{}){}", ranks_text(late, "has", "have"), subject_.what(),
             seconds_text(std::max(now - start_, counted_)), end, there(),
             doings_of(job_, late, "; what takes one worker alone long is told by Job::busy()"));
}

WaitWatch::WaitWatch(JobState& job, WaitSubject subject, Clock::time_point since)
    : subject_(std::move(subject)),
      never_([] { return false; }),
      wait_(std::make_unique<SlowWait>(job, never_, subject_)) {
  job.threads().note();
  wait_->begin(since);
}

WaitWatch::~WaitWatch() = default;

bool WaitWatch::poll_peers() { return wait_->watch(); }

void WaitWatch::check() { wait_->check(); }

bool yield_until(JobState& job, const std::function<bool()>& ready) {
  job.threads().note();
  for (int i = 0; i < kYields; ++i) {
    job.background().progress();
    ::sched_yield();
    if (ready()) return true;
  }
  return false;
}

void sleep_until(JobState& job, const std::function<bool()>& ready, const WaitSubject& subject) {
  SlowWait(job, ready, subject).run();
}

}  // namespace tutti
