#include "comm/link/link_collectives.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Calls a Done once all parts of an operation have ended, with the first error among them.
class Parts {
 public:
  /// A part of its own stands for the caller, who may not have posted all others yet.
  explicit Parts(Link::Done done) : done_(std::move(done)) {}

  static Link::Done part_of(const std::shared_ptr<Parts>& parts) {
    {
      const std::lock_guard lock(parts->mutex_);
      ++parts->open_;
    }
    return [parts](const LinkError* error) { parts->end_part(error); };
  }

  void end_part(const LinkError* error) {
    {
      const std::lock_guard lock(mutex_);
      if (error != nullptr && !error_) error_ = *error;
      if (--open_ > 0) return;
    }
    done_(error_ ? &*error_ : nullptr);
  }

 private:
  std::mutex mutex_;
  int open_ = 1;
  std::optional<LinkError> error_;
  Link::Done done_;
};

constexpr std::size_t kTestBytes = 64;
using TestBytes = std::array<std::byte, kTestBytes>;

/// What `from` sends to `to`: different for each pair, lane and position.
TestBytes test_bytes(int from, int to, int lane) {
  TestBytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(17 + 5 * i + 31 * from + 7 * to + 3 * lane);
  }
  return bytes;
}

/// One exchange of self_test(). Shared with the operations: they may outlive a wait that gave up.
struct TestExchange {
  int lane = 0;
  int peer = 0;
  TestBytes out;
  TestBytes in{};
  PendingOperation sent;
  PendingOperation received;
};

/// `done`, which keeps what it is about alive.
Link::Done keeping(const std::shared_ptr<TestExchange>& exchange, Link::Done done) {
  return [exchange, done = std::move(done)](const LinkError* error) { done(error); };
}

}  // namespace

void all_to_all(Link& link, int lane, std::span<const std::span<const std::byte>> out,
                std::span<const std::span<std::byte>> in, Link::Done done) {
  const auto peers = link.peers();
  const auto self = link.self();
  TUTTI_CHECK(out.size() == static_cast<std::size_t>(peers) && in.size() == out.size(),
              "{} and {} parts for {} peers", out.size(), in.size(), peers);
  TUTTI_CHECK(out[self].size() == in[self].size(), "{} bytes to itself, {} from itself",
              out[self].size(), in[self].size());
  const auto parts = std::make_shared<Parts>(std::move(done));
  std::ranges::copy(out[self], in[self].begin());
  for (int i = 1; i < peers; ++i) {
    const int to = (self + i) % peers;
    const int from = (self + peers - i) % peers;
    link.receive(lane, from, in[from], Parts::part_of(parts));
    link.send(lane, to, out[to], Parts::part_of(parts));
  }
  parts->end_part(nullptr);
}

void broadcast(Link& link, int lane, int root, std::span<std::byte> bytes, Link::Done done) {
  TUTTI_CHECK(root >= 0 && root < link.peers(), "root {} of {} peers", root, link.peers());
  if (link.self() != root) {
    link.receive(lane, root, bytes, std::move(done));
    return;
  }
  const auto parts = std::make_shared<Parts>(std::move(done));
  for (int i = 1; i < link.peers(); ++i) {
    link.send(lane, (root + i) % link.peers(), bytes, Parts::part_of(parts));
  }
  parts->end_part(nullptr);
}

Link::Done PendingOperation::done() {
  return [state = state_](const LinkError* error) {
    const std::lock_guard lock(state->mutex);
    if (error != nullptr) state->error = *error;
    state->ended = true;
    state->ended_or_not.notify_all();
  };
}

bool PendingOperation::wait(Link& link, Deadline deadline) {
  const auto has_ended = [this] { return state_->ended; };
  std::unique_lock lock(state_->mutex);
  while (link.needs_progress() && !has_ended()) {
    if (Clock::now() >= deadline.at) return false;
    lock.unlock();
    // Short: another thread's progress() may be the one that ends this operation.
    link.progress({std::min(deadline.at, Clock::now() + std::chrono::milliseconds(10))});
    lock.lock();
  }
  if (deadline.at == Clock::time_point::max()) {
    state_->ended_or_not.wait(lock, has_ended);
    return true;
  }
  return state_->ended_or_not.wait_until(lock, deadline.at, has_ended);
}

const LinkError* PendingOperation::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended && state_->error ? &*state_->error : nullptr;
}

void self_test(Link& link, Deadline deadline) {
  std::vector<std::shared_ptr<TestExchange>> exchanges;
  for (int lane = 0; lane < link.lanes(); ++lane) {
    for (int peer = 0; peer < link.peers(); ++peer) {
      if (peer == link.self()) continue;
      auto exchange = std::make_shared<TestExchange>();
      exchange->lane = lane;
      exchange->peer = peer;
      exchange->out = test_bytes(link.self(), peer, lane);
      link.receive(lane, peer, exchange->in, keeping(exchange, exchange->received.done()));
      link.send(lane, peer, exchange->out, keeping(exchange, exchange->sent.done()));
      exchanges.push_back(std::move(exchange));
    }
  }
  std::vector<int> silent;
  for (const auto& exchange : exchanges) {
    for (auto* operation : {&exchange->received, &exchange->sent}) {
      if (!operation->wait(link, deadline)) {
        if (silent.empty() || silent.back() != exchange->peer) silent.push_back(exchange->peer);
        continue;
      }
      if (const auto* error = operation->error()) {
        throw IoError(0, fmt::format("the test of the link with peer {} failed on lane {}: {}",
                                     exchange->peer, exchange->lane, error->text));
      }
    }
  }
  if (!silent.empty()) {
    std::ranges::sort(silent);
    silent.erase(std::ranges::unique(silent).begin(), silent.end());
    throw Timeout(fmt::format("the test of the link ({}) had no answer in time from peers {}",
                              link.description(), fmt::join(silent, " ")));
  }
  for (const auto& exchange : exchanges) {
    if (exchange->in != test_bytes(exchange->peer, link.self(), exchange->lane)) {
      throw Mismatch(fmt::format(
          "the test of the link ({}) got other bytes from peer {} on lane {} than were sent",
          link.description(), exchange->peer, exchange->lane));
    }
  }
}

}  // namespace tutti
