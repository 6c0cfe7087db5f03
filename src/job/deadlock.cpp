#include "job/deadlock.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "job/wire/rank_set.h"

namespace tutti {
namespace {

/// A cycle has to stand this long before it is believed. Far above what a proof needs.
constexpr std::chrono::milliseconds kPatience{500};
/// Clocks of different processors, and loads that run ahead of them, are closer than this.
constexpr std::chrono::milliseconds kMargin{1};
constexpr std::chrono::seconds kLinger{2};
constexpr const char* kUsualCause =
    " (usually a call that all workers have to make, such as evaluate(), save() or a collective, "
    "was made by some of them alone)";

std::int64_t count_of(Clock::time_point time) { return time.time_since_epoch().count(); }

}  // namespace

NoticeView DeadlockWatch::provable(int rank) const {
  const WorkerSlot& worker = job_.slot(rank);
  const NoticeView view = read(worker.notice);
  const auto done = worker.stores_done.load(std::memory_order_acquire);
  const bool stands = (view.state == WaitNotice::waiting || view.state == WaitNotice::deadlocked) &&
                      worker.ended.load(std::memory_order_acquire) == 0 &&
                      worker.busy_until.load(std::memory_order_acquire) == 0 &&
                      worker.stores_sent.load(std::memory_order_acquire) == done;
  return stands ? view : NoticeView{};
}

std::vector<int> DeadlockWatch::find_cycle(const std::vector<NoticeView>& notices) const {
  const int me = job_.identity().rank;
  std::vector<int> from(notices.size(), -1);
  std::vector<int> queue{me};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const int at = queue[next];
    for (const int to :
         (notices[static_cast<std::size_t>(at)].missing & RankSet::below(job_.identity().size))
             .ranks()) {
      if (to == me) {
        std::vector<int> cycle;
        for (int rank = at; rank != -1; rank = from[static_cast<std::size_t>(rank)])
          cycle.push_back(rank);
        std::reverse(cycle.begin(), cycle.end());
        std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
        return cycle;
      }
      const auto index = static_cast<std::size_t>(to);
      if (from[index] != -1 || !notices[index].in_wait()) continue;
      from[index] = at;
      queue.push_back(to);
    }
  }
  return {};
}

std::optional<std::vector<int>> DeadlockWatch::proven_cycle() {
  const std::uint32_t event_before = job_.board().event.load(std::memory_order_acquire);
  const auto now = job_.system().now();
  std::vector<NoticeView> notices;
  notices.reserve(static_cast<std::size_t>(job_.identity().size));
  for (int rank = 0; rank < job_.identity().size; ++rank) notices.push_back(provable(rank));
  const std::uint32_t event_after = job_.board().event.load(std::memory_order_acquire);
  const std::vector<int> cycle = notices[static_cast<std::size_t>(job_.identity().rank)].in_wait()
                                     ? find_cycle(notices)
                                     : std::vector<int>{};
  std::vector<Member> members;
  members.reserve(cycle.size());
  for (const int rank : cycle)
    members.push_back({rank, notices[static_cast<std::size_t>(rank)].since});
  if (members.empty() || members != suspects_ || event_after != event_) {
    suspects_ = std::move(members);
    event_ = event_before;
    suspected_ = now;
    return std::nullopt;
  }
  if (now - suspected_ < kPatience) return std::nullopt;
  for (const int rank : cycle) {
    const NoticeView& notice = notices[static_cast<std::size_t>(rank)];
    const bool looked_again = notice.evaluated > count_of(suspected_ + kMargin);
    if (notice.state != WaitNotice::deadlocked && !looked_again) return std::nullopt;
  }
  return cycle;
}

void DeadlockWatch::linger() {
  WaitNotice& notice = job_.slot(job_.identity().rank).notice;
  NoticeView mine = read(notice);
  mine.state = WaitNotice::deadlocked;
  publish(notice, mine);
  const auto others_unaware = [&] {
    return std::any_of(suspects_.begin(), suspects_.end(), [&](const Member& member) {
      const NoticeView view = provable(member.rank);
      return view.state == WaitNotice::waiting && view.since == member.since;
    });
  };
  const auto end = Clock::now() + kLinger;
  // No announcement wakes this: it would cast doubt on the proof of the others.
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
