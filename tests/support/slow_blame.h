#pragma once

// A rendezvous whose worker takes its time between giving up and saying so.
//
// Threads: those of the rendezvous behind it. Failure: that one's.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/deadline.h"
#include "job/wire/rendezvous.h"

namespace tutti::test {

/// Fails the test after a minute.
inline void poll_until(const std::function<bool()>& reached) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (!reached()) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// `blaming` says that a worker gives up; what it says passes once `go` is set.
class SlowBlame final : public Rendezvous {
 public:
  SlowBlame(std::unique_ptr<Rendezvous> inner, std::atomic<bool>& blaming, std::atomic<bool>& go)
      : inner_(std::move(inner)), blaming_(blaming), go_(go) {}
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline, const Patience& patience) override {
    return inner_->all_gather(tag, ranks, std::move(mine), deadline, patience);
  }
  void report_end(int rank) noexcept override { inner_->report_end(rank); }
  void blame(int culprit, const std::string& text) noexcept override {
    blaming_ = true;
    poll_until([&] { return go_.load(); });
    inner_->blame(culprit, text);
  }

 private:
  std::unique_ptr<Rendezvous> inner_;
  std::atomic<bool>& blaming_;
  std::atomic<bool>& go_;
};

}  // namespace tutti::test
