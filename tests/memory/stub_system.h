#pragma once

// A System that says what a test wants of the machine's memory, and is the host in all else.

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/system.h"

namespace tutti::test {

class StubSystem final : public System {
 public:
  explicit StubSystem(std::vector<MemoryBound> bounds) : bounds_(std::move(bounds)) {}
  Clock::time_point now() const override { return host_->now(); }
  FileDescriptor create_memory(std::string_view name, std::size_t bytes) override {
    return host_->create_memory(name, bytes);
  }
  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override {
    return host_->map(file, bytes);
  }
  FileDescriptor life_line() override { return host_->life_line(); }
  std::vector<MemoryBound> memory_bounds() const override { return bounds_; }
  bool has_other_threads() const override { return host_->has_other_threads(); }
  std::vector<int> allowed_processors() const override { return host_->allowed_processors(); }
  int processors() const override { return host_->processors(); }

 private:
  std::shared_ptr<System> host_ = host_system();
  std::vector<MemoryBound> bounds_;
};

}  // namespace tutti::test
