#pragma once

// A System that is another one in all that a test does not override.

#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/system.h"

namespace tutti::test {

class WrappedSystem : public System {
 public:
  explicit WrappedSystem(std::shared_ptr<System> inner = host_system())
      : inner_(std::move(inner)) {}
  Clock::time_point now() const override { return inner_->now(); }
  FileDescriptor create_memory(std::string_view name, std::size_t bytes) override {
    return inner_->create_memory(name, bytes);
  }
  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override {
    return inner_->map(file, bytes);
  }
  FileDescriptor life_line() override { return inner_->life_line(); }
  bool has_other_threads() const override { return inner_->has_other_threads(); }
  std::vector<MemoryBound> memory_bounds() const override { return inner_->memory_bounds(); }
  std::vector<MemoryBound> own_memory_bounds() const override {
    return inner_->own_memory_bounds();
  }
  std::vector<int> allowed_processors() const override { return inner_->allowed_processors(); }
  int processors() const override { return inner_->processors(); }

 private:
  std::shared_ptr<System> inner_;
};

/// Its clock can be set forward, as that of a process that did not run meanwhile.
class SettableClock final : public WrappedSystem {
 public:
  using WrappedSystem::WrappedSystem;
  void forward(std::chrono::seconds by) { ahead_ += by.count(); }
  Clock::time_point now() const override {
    return WrappedSystem::now() + std::chrono::seconds(ahead_.load());
  }

 private:
  std::atomic<std::int64_t> ahead_{0};
};

}  // namespace tutti::test
