#include "job/deadlock.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "job/hosts/block_table.h"
#include "job/hosts/stores.h"
#include "job/wire/mix.h"
#include "job/wire/rank_set.h"

namespace tutti {
namespace {

/// A circle has to stand this long before it is believed. Far above what a proof needs.
constexpr std::chrono::milliseconds kPatience{500};
/// A wait that lasts this long is told to other hosts, and what changes in it as often.
constexpr std::chrono::milliseconds kTellInterval{500};
constexpr std::chrono::seconds kLinger{2};
constexpr const char* kUsualCause =
    " (usually a call that all workers have to make, such as evaluate(), save() or a collective, "
    "was made by some of them alone; or one had fewer batches than others and left the loop "
    "without "
    "DataParallel::join())";

using Notices = std::vector<NoticeView>;

const NoticeView& of(const Notices& notices, int rank) {
  return notices[static_cast<std::size_t>(rank)];
}

/// Which ranks `from` waits for, directly or through others that wait.
RankSet reached_from(const Notices& notices, int from) {
  RankSet reached;
  RankSet next = of(notices, from).missing;
  while (!next.empty()) {
    reached |= next;
    RankSet after;
    for (const int rank : next.ranks()) after |= of(notices, rank).missing;
    next = after - reached;
  }
  return reached;
}

/// Which of `ranks` wait for `to`, directly or through others.
RankSet that_reach(const Notices& notices, const RankSet& ranks, int to) {
  RankSet reach;
  RankSet left = ranks;
  for (bool found = true; found;) {
    found = false;
    for (const int rank : left.ranks()) {
      const RankSet& missing = of(notices, rank).missing;
      if (!missing.contains(to) && (missing & reach).empty()) continue;
      reach.insert(rank);
      left -= {rank};
      found = true;
    }
  }
  return reach;
}

/// A shortest way from `rank` back to it, the lowest rank first.
std::vector<int> shortest_cycle(const Notices& notices, const RankSet& circle, int rank) {
  std::vector<int> from(notices.size(), -1);
  std::vector<int> queue{rank};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const int at = queue[next];
    const RankSet& missing = of(notices, at).missing;
    if (missing.contains(rank)) {
      std::vector<int> cycle;
      for (int on = at; on != -1; on = from[static_cast<std::size_t>(on)]) cycle.push_back(on);
      std::reverse(cycle.begin(), cycle.end());
      std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
      return cycle;
    }
    for (const int to : (missing & circle).ranks()) {
      if (from[static_cast<std::size_t>(to)] != -1) continue;
      from[static_cast<std::size_t>(to)] = at;
      queue.push_back(to);
    }
  }
  return {};
}

/// One number for the waits of `ranks`, as the notices show them. Never 0.
std::uint64_t hash_of(const Notices& notices, const RankSet& ranks) {
  std::uint64_t hash = 0;
  for (const int rank : ranks.ranks()) {
    hash = mix(hash, static_cast<std::uint64_t>(rank));
    hash = mix(hash, static_cast<std::uint64_t>(of(notices, rank).since));
    hash = mix(hash, of(notices, rank).number);
  }
  return hash | 1;
}

bool differ(const NoticeView& a, const NoticeView& b) {
  return a.state != b.state || a.missing != b.missing || a.since != b.since ||
         a.number != b.number || a.seen != b.seen;
}

/// Has other hosts know this worker's notice as it is on the board, after all that the worker has
/// published. Nobody is woken.
void send_notice(JobState& job) {
  if (!job.spans_hosts() || !job.rendezvous().reaches_hosts()) return;
  WaitNotice& mine = job.slot(job.identity().rank).notice;
  const auto text = job.blocks().place_of(&mine.text.version);
  const auto view = job.blocks().place_of(&mine.view.version);
  TUTTI_CHECK(text && view, "the board lies in no block");
  StoreMessage message;
  message.shared_bytes(*text, sizeof mine.text.words, read(mine.text));
  message.shared_bytes(*view, sizeof mine.view.words, bytes_of(read(mine)));
  job.store(message.take(), {.kind = Haste::with_next});
}

/// A worker is excused while it is busy, or waits for one that is.
bool is_excused(const JobState& job, int rank, Clock::time_point now, RankSet& seen) {
  const WorkerSlot& worker = job.slot(rank);
  seen.insert(rank);
  if (worker.busy_until.load(std::memory_order_acquire) > now.time_since_epoch().count()) {
    return true;
  }
  const NoticeView notice = read(worker.notice);
  if (!notice.in_wait()) return false;
  for (const int next : (notice.missing & RankSet::below(job.identity().size)).ranks())
    if (!seen.contains(next) && is_excused(job, next, now, seen)) return true;
  return false;
}

}  // namespace

RankSet not_excused(const JobState& job, const RankSet& ranks, Clock::time_point now) {
  RankSet late;
  for (const int rank : ranks.ranks()) {
    RankSet seen{job.identity().rank};
    if (!is_excused(job, rank, now, seen)) late.insert(rank);
  }
  return late;
}

std::string doings_of(const JobState& job, const RankSet& ranks, const char* otherwise) {
  std::string text;
  for (const int rank : ranks.ranks()) {
    const WorkerSlot& worker = job.slot(rank);
    const NoticeView notice = read(worker.notice);
    if (notice.in_wait()) {
      text += fmt::format("; rank {} waits for {} in {}", rank, ranks_text(notice.missing),
                          read(worker.notice.text));
    } else if (worker.busy_until.load(std::memory_order_acquire) != 0) {
      text += fmt::format("; rank {} is busy with \"{}\", for longer than it had said", rank,
                          read(worker.busy_what));
    }
  }
  return text.empty() ? otherwise : text;
}

void DeadlockWatch::show(NoticeView view, const std::function<std::string()>& what) {
  if (!shown_.in_wait()) tutti::write(job_.slot(own_rank()).notice.text, what());
  view.number = shown_.number;
  if (view.state != shown_.state || view.missing != shown_.missing) {
    ++view.number;
    forget_circle();
  }
  if (stands_) view.seen = hash_;
  put(view);
}

void DeadlockWatch::put(const NoticeView& view) {
  shown_ = view;
  tutti::publish(job_.slot(own_rank()).notice, view);
  const auto now = job_.system().now();
  if (!is_time_to_tell(view, now)) return;
  send_notice(job_);
  told_ = view;
  told_at_ = now;
}

bool DeadlockWatch::is_time_to_tell(const NoticeView& view, Clock::time_point now) const {
  if (!job_.spans_hosts() || !differ(view, told_)) return false;
  if (!told_.in_wait()) {
    const Clock::time_point since{Clock::duration(view.since)};
    return view.in_wait() && now - since >= kTellInterval;
  }
  return view.state != told_.state || view.seen != told_.seen || now - told_at_ >= kTellInterval;
}

void DeadlockWatch::hide() {
  if (shown_.in_wait()) put({});
}

void DeadlockWatch::forget_circle() {
  circle_ = {};
  hash_ = 0;
  stands_ = false;
}

NoticeView DeadlockWatch::provable(int rank) const {
  const WorkerSlot& worker = job_.slot(rank);
  NoticeView view = read(worker.notice);
  const auto done = worker.stores_done.load(std::memory_order_acquire);
  const auto sent = worker.stores_sent.load(std::memory_order_acquire);
  const bool stands = (view.state == NoticeView::waiting || view.state == NoticeView::deadlocked) &&
                      worker.ended.load(std::memory_order_acquire) == 0 &&
                      worker.busy_until.load(std::memory_order_acquire) == 0 &&
                      (sent == done || sent == 0);  // 0: of another host, or none
  if (!stands) return {};
  view.missing &= RankSet::below(job_.identity().size);
  return view;
}

std::optional<std::vector<int>> DeadlockWatch::proven_cycle() {
  const int me = own_rank();
  if (shown_.state != NoticeView::waiting) return std::nullopt;
  Notices notices;
  notices.reserve(static_cast<std::size_t>(job_.identity().size));
  for (int rank = 0; rank < job_.identity().size; ++rank) notices.push_back(provable(rank));
  const auto now = job_.system().now();
  const RankSet circle = that_reach(notices, reached_from(notices, me), me);
  if (!circle.contains(me)) {
    forget_circle();
    return std::nullopt;
  }
  if (const auto hash = hash_of(notices, circle); hash != hash_) {
    hash_ = hash;
    circle_ = circle;
    found_ = now;
    stands_ = false;
    return std::nullopt;
  }
  if (now - found_ < kPatience) return std::nullopt;
  stands_ = true;
  for (const int rank : circle.ranks()) {
    if (of(notices, rank).seen != hash_) return std::nullopt;
  }
  return shortest_cycle(notices, circle, me);
}

void DeadlockWatch::linger() {
  NoticeView mine = shown_;
  mine.state = NoticeView::deadlocked;
  put(mine);
  const auto others_unaware = [&] {
    const auto ranks = (circle_ - RankSet{own_rank()}).ranks();
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      const NoticeView view = provable(rank);
      return view.state == NoticeView::waiting && view.seen == hash_;
    });
  };
  const auto end = Clock::now() + kLinger;
  while (others_unaware() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

std::string DeadlockWatch::describe(const std::vector<int>& cycle) const {
  std::string text;
  for (std::size_t i = 0; i < cycle.size(); ++i)
    text += fmt::format("{}rank {} waits for rank {} in {}", i == 0 ? "" : "; ", cycle[i],
                        cycle[(i + 1) % cycle.size()], read(job_.slot(cycle[i]).notice.text));
  return text + kUsualCause;
}

}  // namespace tutti
