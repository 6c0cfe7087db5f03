#include "chaos/chaos_world.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/deadline.h"

namespace tutti::test::chaos {
namespace {

/// Silence is noticed within two seconds; the machine may be loaded.
constexpr std::chrono::seconds kBound{60};

}  // namespace

ChaosWorld::ChaosWorld(const ChaosCase& one)
    : case_(one),
      map_(one.map()),
      threads_(std::make_shared<ThreadWorld>(map_.size())),
      endings_(static_cast<std::size_t>(map_.size())) {
  hosts_ = std::make_unique<ChaosHosts>(one, std::make_shared<ThreadSystem>(threads_, 0));
}

void ChaosWorld::chance(int rank) {
  if (rank == case_.victim && case_.fault != Fault::none && chances_++ == case_.moment) {
    std::unique_lock lock(mutex_);
    if (endings_[static_cast<std::size_t>(rank)].kind == Ending::Kind::running) fail_now(lock);
  }
  if (!has_stopped_) return;
  std::unique_lock lock(mutex_);
  if (pausing_) {
    if (map_.host_of(rank) != case_.victim_host()) return;
    changed_.wait(lock, [&] { return !pausing_; });
    return;
  }
  if (!stopped_.contains(rank)) return;
  changed_.notify_all();
  changed_.wait(lock, [] { return false; });  // the process ends with the case
}

/// Whose thread this is has its turn to fail.
void ChaosWorld::fail_now(std::unique_lock<std::mutex>& lock) {
  has_failed_ = true;
  const int host = case_.victim_host();
  switch (case_.fault) {
    case Fault::none:
      return;
    case Fault::worker_dies:
      stop({case_.victim});
      hosts_->end_worker(case_.victim);
      threads_->kill(case_.victim);
      return;
    case Fault::host_dies:
      stop(map_.ranks_of(host));
      hosts_->end_host(host);
      for (const int rank : map_.ranks_of(host).ranks()) threads_->kill(rank);
      return;
    case Fault::host_stops:
      stop(map_.ranks_of(host));
      hosts_->silence(host, true);
      hosts_->lose_messages(host);
      return;
    case Fault::cable:
      hosts_->silence(host, true);
      hosts_->lose_messages(host);
      return;
    case Fault::links_break:
      hosts_->break_links(host);
      return;
    case Fault::host_pauses:
      pausing_ = true;
      has_stopped_ = true;
      hosts_->silence(host, true);
      lock.unlock();
      std::this_thread::sleep_for(case_.pause);
      hosts_->silence(host, false);
      lock.lock();
      pausing_ = false;
      has_stopped_ = false;
      changed_.notify_all();
      return;
  }
}

void ChaosWorld::stop(const RankSet& ranks) {
  stopped_ = ranks;
  for (const int rank : ranks.ranks()) {
    auto& ending = endings_[static_cast<std::size_t>(rank)];
    if (ending.kind == Ending::Kind::running) ending.kind = Ending::Kind::stopped;
  }
  has_stopped_ = true;
}

void ChaosWorld::end(int rank, Ending ending) {
  const std::lock_guard lock(mutex_);
  auto& mine = endings_[static_cast<std::size_t>(rank)];
  if (mine.kind != Ending::Kind::running) return;
  mine = std::move(ending);
  changed_.notify_all();
}

bool ChaosWorld::wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kBound, [&] {
    return std::ranges::none_of(endings_,
                                [](const auto& one) { return one.kind == Ending::Kind::running; });
  });
}

void ChaosWorld::wrong(int rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (stopped_.contains(rank)) return;
  wrong_.push_back(fmt::format("rank {}: {}", rank, text));
}

/// Without the hub a host is on its own: from there everybody elsewhere is lost.
bool ChaosWorld::may_name(int rank, int culprit) const {
  const int host = case_.victim_host();
  const bool is_elsewhere = map_.host_of(culprit) != map_.host_of(rank);
  switch (case_.fault) {
    case Fault::worker_dies:
      return culprit == case_.victim;
    case Fault::host_dies:
    case Fault::host_stops:
      return map_.host_of(culprit) == host || (host == 0 && is_elsewhere);
    case Fault::cable:
      return is_elsewhere &&
             (map_.host_of(culprit) == host || map_.host_of(rank) == host || host == 0);
    case Fault::links_break:  // one of the two ends, which who finds it tells to all
      return true;
    case Fault::none:
    case Fault::host_pauses:
      return false;
  }
  return false;
}

/// A message that fails ends its own way alone: whoever leaves because of it is lost to others that
/// have messages with it, and those to others again.
bool ChaosWorld::lost_rightly(int rank) const {
  for (int steps = 0; steps < map_.size(); ++steps) {
    const auto& ending = endings_[static_cast<std::size_t>(rank)];
    if (ending.kind != Ending::Kind::lost) return false;
    if (may_name(rank, ending.culprit)) return true;
    if (ending.text.find("left the job in an orderly way before reaching message") ==
        std::string::npos) {
      return false;
    }
    rank = ending.culprit;
  }
  return false;
}

std::string ChaosWorld::verdict() const {
  const std::lock_guard lock(mutex_);
  if (!wrong_.empty()) return "wrong bytes: " + wrong_.front();
  for (int rank = 0; rank < map_.size(); ++rank) {
    const auto& ending = endings_[static_cast<std::size_t>(rank)];
    switch (ending.kind) {
      case Ending::Kind::running:
        return fmt::format("rank {} hangs", rank);
      case Ending::Kind::failed:
        return fmt::format("rank {} failed: {}", rank, ending.text);
      case Ending::Kind::lost:
        if (!has_failed_ || !lost_rightly(rank)) {
          return fmt::format("rank {} lost rank {}: {}", rank, ending.culprit, ending.text);
        }
        break;
      case Ending::Kind::stopped:
      case Ending::Kind::finished:
        break;
    }
  }
  return "";
}

std::string ChaosWorld::endings() const {
  static constexpr const char* kNames[] = {"runs", "was stopped", "has finished", "lost", "failed"};
  const std::lock_guard lock(mutex_);
  std::string text;
  for (std::size_t rank = 0; rank < endings_.size(); ++rank) {
    const auto& one = endings_[rank];
    text += fmt::format("\n  rank {} {}", rank, kNames[static_cast<int>(one.kind)]);
    if (one.culprit >= 0) text += fmt::format(" rank {}", one.culprit);
    if (!one.text.empty()) text += ": " + one.text;
  }
  return text;
}

}  // namespace tutti::test::chaos
