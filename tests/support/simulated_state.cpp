#include "support/simulated_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace tutti {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): a draw for the message that the numbers name.
std::uint64_t drawn(std::uint64_t seed, std::initializer_list<std::uint64_t> names) {
  auto x = seed;
  for (const auto name : names) {
    x += 0x9E3779B97F4A7C15 * (name + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
  }
  return x;
}

// Class 0 are the actions of SimulatedNetwork::at().
constexpr int kNoticeClass = 1;
constexpr int kMessageClass = 2;

}  // namespace

SimulatedNetwork::State::State(SimulatedOptions options)
    : options_(std::move(options)),
      participants_(options_.peers),
      ways_(static_cast<std::size_t>(options_.peers) * options_.peers) {
  for (auto& participant : participants_) participant.lost.resize(options_.peers);
  for (int from = 0; from < options_.peers; ++from) {
    for (int to = 0; to < options_.peers; ++to) {
      auto& direction = way(from, to);
      direction.path = options_.path_of && from != to ? options_.path_of(from, to) : options_.path;
      direction.channels.resize(options_.lanes);
    }
  }
}

void SimulatedNetwork::State::attach(int peer) {
  const std::lock_guard lock(mutex_);
  auto& self = participants_[peer];
  TUTTI_CHECK(!self.attached && !self.dead, "peer {} has been here", peer);
  self.attached = true;
}

void SimulatedNetwork::State::detach(int peer) {
  std::unique_lock lock(mutex_);
  auto& self = participants_[peer];
  if (!self.dead) end_locked(peer, fmt::format("peer {} has closed its link", peer));
  self.attached = false;
  // No Done may be called once the link is gone; another thread may be calling some.
  while (!self.mailbox.empty() || self.drainer != std::thread::id()) {
    if (!drain_locked(lock, peer)) changed_.wait(lock);
  }
  drain_after_locked(lock, peer);
  changed_.notify_all();
}

/// Whether `self` is dead, in which case its operation has failed.
bool SimulatedNetwork::State::is_gone_locked(int self, int peer, Link::Done& done) {
  if (!participants_[self].dead) return false;
  fail_locked(self, std::move(done),
              {LinkError::Kind::kClosed, peer, fmt::format("peer {} itself is dead", self)});
  return true;
}

void SimulatedNetwork::State::send(int from, int to, int lane, std::span<const std::byte> bytes,
                                   Link::Done done) {
  std::unique_lock lock(mutex_);
  if (const auto& why = participants_[from].lost[to]; why) {
    fail_locked(from, std::move(done), {LinkError::Kind::kLost, to, *why});
  } else if (!is_gone_locked(from, to, done)) {
    auto& channel = way(from, to).channels[lane];
    channel.sends.push_back({bytes, std::move(done), channel.posted++});
    schedule_locked(from, to, lane, channel.sends.back());
    match_locked(from, to, lane);
  }
  drain_after_locked(lock, from);
}

void SimulatedNetwork::State::receive(int to, int from, int lane, std::span<std::byte> bytes,
                                      Link::Done done) {
  std::unique_lock lock(mutex_);
  if (const auto& why = participants_[to].lost[from]; why) {
    fail_locked(to, std::move(done), {LinkError::Kind::kLost, from, *why});
  } else if (!is_gone_locked(to, from, done)) {
    way(from, to).channels[lane].receives.push_back({bytes, std::move(done)});
    match_locked(from, to, lane);
  }
  drain_after_locked(lock, to);
}

/// When the message will be there.
void SimulatedNetwork::State::schedule_locked(int from, int to, int lane, Send& send) {
  auto& direction = way(from, to);
  if (!options_.modelled) {
    send.arrived = !participants_[from].silent && !participants_[to].silent;
    return;
  }
  const auto& path = direction.path;
  const auto begin = std::max(now_, direction.busy_until);
  const auto seconds = path.bytes_per_second > 0
                           ? static_cast<double>(send.bytes.size()) / path.bytes_per_second
                           : 0;
  direction.busy_until = begin + Time(std::llround(seconds * 1e9));
  auto arrival = direction.busy_until + path.latency;
  if (path.jitter > Time(0)) {
    const auto draw =
        drawn(options_.seed, {static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
                              static_cast<std::uint64_t>(lane), send.sequence});
    arrival += Time(draw % static_cast<std::uint64_t>(path.jitter.count() + 1));
  }
  auto& channel = direction.channels[lane];
  auto& last = options_.lanes_overtake ? channel.last_arrival : direction.last_arrival;
  last = arrival = std::max(arrival, last);
  events_[{arrival, kMessageClass, from, to, direction.posted++}] =
      [this, from, to, lane, sequence = send.sequence] { arrive(from, to, lane, sequence); };
}

void SimulatedNetwork::State::arrive(int from, int to, int lane, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (participants_[from].silent || participants_[to].silent) return;
  for (auto& send : way(from, to).channels[lane].sends) {
    if (send.sequence == sequence) send.arrived = true;
  }
  match_locked(from, to, lane);
}

/// Hands over what has arrived and is waited for.
void SimulatedNetwork::State::match_locked(int from, int to, int lane) {
  auto& direction = way(from, to);
  auto& [sends, receives, posted, last] = direction.channels[lane];
  while (!sends.empty() && !receives.empty() && sends.front().arrived) {
    const auto receive = std::move(receives.front());
    receives.pop_front();
    if (const auto size = sends.front().bytes.size(); size != receive.bytes.size()) {
      const auto text =
          fmt::format("peer {} has sent {} bytes on lane {} where peer {} receives {}", from, size,
                      lane, to, receive.bytes.size());
      lose_locked(to, from, {LinkError::Kind::kLost, from, text});
      fail_locked(to, receive.done, {LinkError::Kind::kMismatch, from, text});
      lose_locked(from, to, {LinkError::Kind::kLost, to, text});
      return;
    }
    const auto send = std::move(sends.front());
    sends.pop_front();
    if (!send.bytes.empty()) {
      std::memcpy(receive.bytes.data(), send.bytes.data(), send.bytes.size());
    }
    ++direction.delivered.messages;
    direction.delivered.bytes += send.bytes.size();
    participants_[to].mailbox.push_back([done = receive.done] { done(nullptr); });
    participants_[from].mailbox.push_back([done = send.done] { done(nullptr); });
  }
  changed_.notify_all();
}

void SimulatedNetwork::State::fail_locked(int owner, Link::Done done, LinkError error) {
  participants_[owner].mailbox.push_back(
      [done = std::move(done), error = std::move(error)] { done(&error); });
}

/// The open operations of `owner` with `peer`.
void SimulatedNetwork::State::fail_all_locked(int owner, int peer, const LinkError& error) {
  for (auto& channel : way(peer, owner).channels) {
    for (auto& receive : channel.receives) fail_locked(owner, std::move(receive.done), error);
    channel.receives.clear();
  }
  for (auto& channel : way(owner, peer).channels) {
    for (auto& send : channel.sends) fail_locked(owner, std::move(send.done), error);
    channel.sends.clear();
  }
}

void SimulatedNetwork::State::lose_locked(int self, int peer, const LinkError& error) {
  auto& why = participants_[self].lost[peer];
  if (why || participants_[self].dead) return;
  why = error.text;
  fail_all_locked(self, peer, error);
  changed_.notify_all();
}

/// The peer posts no more, and nothing of it arrives. The others are told after a while.
void SimulatedNetwork::State::end_locked(int peer, const std::string& text) {
  auto& self = participants_[peer];
  self.dead = true;
  for (int other = 0; other < options_.peers; ++other) {
    if (other == peer) continue;
    fail_all_locked(peer, other, {LinkError::Kind::kClosed, other, text});
    const LinkError error{LinkError::Kind::kLost, peer, text};
    if (!options_.modelled) {
      if (!self.silent) lose_locked(other, peer, error);
      continue;
    }
    if (self.silent) continue;
    events_[{now_ + options_.notice, kNoticeClass, peer, other, 0}] = [this, other, peer, error] {
      const std::lock_guard lock(mutex_);
      lose_locked(other, peer, error);
    };
  }
  changed_.notify_all();
}

void SimulatedNetwork::State::kill(int peer) {
  std::unique_lock lock(mutex_);
  if (!participants_[peer].dead) end_locked(peer, fmt::format("peer {} has ended", peer));
  drain_after_locked(lock, peer);
}

void SimulatedNetwork::State::silence(int peer) {
  const std::lock_guard lock(mutex_);
  participants_[peer].silent = true;
  changed_.notify_all();
}

}  // namespace tutti
