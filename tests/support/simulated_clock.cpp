// The clock of a SimulatedNetwork, and who calls what is in the mailboxes.

#include <algorithm>

#include "base/check.h"
#include "support/simulated_state.h"

namespace tutti {

void SimulatedNetwork::State::at(Time time, std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  TUTTI_CHECK(options_.modelled && time >= now_, "no event at {} ns", time.count());
  events_[{time, 0, 0, 0, actions_++}] = std::move(action);
  changed_.notify_all();
}

SimulatedNetwork::State::Time SimulatedNetwork::State::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

SimulatedNetwork::Delivered SimulatedNetwork::State::delivered(int from, int to) const {
  const std::lock_guard lock(mutex_);
  return way(from, to).delivered;
}

bool SimulatedNetwork::State::step() {
  std::unique_lock lock(mutex_);
  const bool is_there = run_event_locked(lock);
  drain_all_locked(lock);
  return is_there;
}

/// Unlocks while the event happens.
bool SimulatedNetwork::State::run_event_locked(std::unique_lock<std::mutex>& lock) {
  if (events_.empty() || advancing_) return false;
  auto event = events_.extract(events_.begin());
  now_ = std::get<0>(event.key());
  advancing_ = true;
  lock.unlock();
  event.mapped()();
  lock.lock();
  advancing_ = false;
  changed_.notify_all();
  return true;
}

/// Whether nobody can do anything before the clock advances.
bool SimulatedNetwork::State::all_wait_locked() const {
  return std::ranges::all_of(participants_, [](const auto& p) {
    const bool takes_part = p.attached && !p.dead && !p.silent;
    return !takes_part || (p.waiting && p.mailbox.empty() && p.drainer == std::thread::id());
  });
}

bool SimulatedNetwork::State::progress(int self, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto& participant = participants_[self];
  for (;;) {
    participant.waiting = false;
    if (drain_locked(lock, self)) return true;
    if (Clock::now() >= deadline.at) return false;
    participant.waiting = true;
    if (all_wait_locked() && run_event_locked(lock)) continue;
    // The others may all wait for this one, and come to wait before it is woken.
    if (deadline.at == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.at);
    }
  }
}

/// Calls what is in the mailbox, unless a thread does already. Whether anything was called.
bool SimulatedNetwork::State::drain_locked(std::unique_lock<std::mutex>& lock, int peer) {
  auto& participant = participants_[peer];
  if (participant.mailbox.empty() || participant.drainer != std::thread::id()) return false;
  participant.drainer = std::this_thread::get_id();
  while (!participant.mailbox.empty()) {
    auto call = std::move(participant.mailbox.front());
    participant.mailbox.pop_front();
    lock.unlock();
    call();
    call = {};  // what it owns may end in a call of a link
    lock.lock();
  }
  participant.drainer = {};
  changed_.notify_all();
  return true;
}

void SimulatedNetwork::State::drain_all_locked(std::unique_lock<std::mutex>& lock) {
  for (bool found = true; found;) {
    found = false;
    for (int peer = 0; peer < options_.peers; ++peer) found |= drain_locked(lock, peer);
  }
}

/// After a call by `peer`: its own failures are told at once, and without delays everything is.
void SimulatedNetwork::State::drain_after_locked(std::unique_lock<std::mutex>& lock, int peer) {
  if (options_.modelled) {
    drain_locked(lock, peer);
  } else {
    drain_all_locked(lock);
  }
}

}  // namespace tutti
