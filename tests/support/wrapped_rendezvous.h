#pragma once

// A rendezvous that passes everything on to another one: a test replaces what it wants otherwise.
//
// Threads, failure: as those of the wrapped one.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/wire/rendezvous.h"

namespace tutti::test {

class WrappedRendezvous : public Rendezvous {
 public:
  explicit WrappedRendezvous(std::unique_ptr<Rendezvous> inner) : inner_(std::move(inner)) {}
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline, const Patience& patience) override {
    return inner_->all_gather(tag, ranks, std::move(mine), deadline, patience);
  }
  void report_end(int rank) noexcept override { inner_->report_end(rank); }
  void blame(int culprit, const std::string& text) noexcept override {
    inner_->blame(culprit, text);
  }
  void hold_block(std::uint64_t block, const FileDescriptor& file, std::size_t bytes) override {
    inner_->hold_block(block, file, bytes);
  }
  void let_go_block(std::uint64_t block) noexcept override { inner_->let_go_block(block); }
  void store(std::string message, const Haste& haste) override {
    inner_->store(std::move(message), haste);
  }
  bool reaches_hosts() const override { return inner_->reaches_hosts(); }
  void when_alone(std::function<void()> told) override { inner_->when_alone(std::move(told)); }

 private:
  std::unique_ptr<Rendezvous> inner_;
};

}  // namespace tutti::test
