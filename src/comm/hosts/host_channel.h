#pragma once

// What a group on several hosts needs of a link between them (comm/host_link.h). The first member
// of each host has it, and drives it.
//
// Threads: one; `done` is called on any. Failure: check() throws PeerLost.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tutti {

class HostChannel {
 public:
  /// Copies of memory; what hosts add up of a collective, and the sums. Each lane of the group has
  /// the latter two for itself: its messages come in the order of its calls alone.
  enum Lane { kCopies, kNodes, kSums };
  static constexpr int lanes(int of_group) { return 1 + 2 * of_group; }
  static constexpr int lane(Lane kind, int of_group) { return kind + 2 * of_group; }

  virtual ~HostChannel() = default;
  /// Makes the link if there is none. Collective among the first members. Throws Mismatch where
  /// their engines differ.
  virtual void connect() = 0;
  virtual bool is_connected() const = 0;
  /// `done` is called once the message has left its memory, or has come; not if it fails.
  virtual void send(int lane, int host, std::span<const std::byte> bytes,
                    std::function<void()> done) = 0;
  virtual void receive(int lane, int host, std::span<std::byte> bytes,
                       std::function<void()> done) = 0;
  /// Throws where something has failed, and the job has had the time to find out why.
  virtual void check() = 0;
};

/// Messages to and from other hosts that are on their way.
class OpenMessages {
 public:
  explicit OpenMessages(int hosts) : open_(static_cast<std::size_t>(hosts)) {}
  /// Once close() was called, and none that was added since is on its way, `word` becomes `value`.
  void open(std::atomic<std::uint64_t>& word, std::uint64_t value) {
    word_ = &word;
    value_ = value;
    all_ = 1;
  }
  void close() { end_one(); }
  /// One more, until what is returned is called.
  std::function<void()> add(int host) {
    auto& open = open_[static_cast<std::size_t>(host)];
    ++open;
    ++all_;
    return [this, &open] {
      --open;
      end_one();
    };
  }
  bool any(int host) const { return open_[static_cast<std::size_t>(host)] != 0; }
  bool any() const { return all_ != 0; }
  /// The link was dropped, and with it all that was under way.
  void forget() {
    for (auto& open : open_) open = 0;
    all_ = 0;
  }

 private:
  void end_one() {
    if (--all_ == 0 && word_ != nullptr) word_->store(value_, std::memory_order_release);
  }

  std::vector<std::atomic<int>> open_;  ///< by host
  std::atomic<int> all_{0};
  std::atomic<std::uint64_t>* word_ = nullptr;
  std::uint64_t value_ = 0;
};

}  // namespace tutti
