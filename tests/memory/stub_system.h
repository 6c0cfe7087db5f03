#pragma once

// A System that says what a test wants of the machine's memory, and is the host in all else.

#include <utility>
#include <vector>

#include "support/wrapped_system.h"

namespace tutti::test {

class StubSystem final : public WrappedSystem {
 public:
  explicit StubSystem(std::vector<MemoryBound> bounds, std::vector<MemoryBound> own_bounds = {})
      : bounds_(std::move(bounds)), own_bounds_(std::move(own_bounds)) {}
  std::vector<MemoryBound> memory_bounds() const override { return bounds_; }
  std::vector<MemoryBound> own_memory_bounds() const override { return own_bounds_; }

 private:
  std::vector<MemoryBound> bounds_;
  std::vector<MemoryBound> own_bounds_;
};

}  // namespace tutti::test
