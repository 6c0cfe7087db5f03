#pragma once

// What libtorch's CPU allocator has given to this thread, and its backwards, and not got back.
//
// Threads: one; meters do not nest, nor run beside torch's profiler. Failure: none.

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace tutti {

class MemoryMeter {
 public:
  MemoryMeter()
      : report_(std::make_shared<Report>()), guard_(c10::DebugInfoKind::PROFILER_STATE, report_) {}
  /// Bytes, since the meter began.
  std::int64_t current() const { return report_->current; }
  /// The most at one time, since then or restart().
  std::int64_t peak() const { return report_->peak; }
  void restart() { report_->peak = report_->current; }

 private:
  struct Report final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*block*/, std::int64_t bytes, std::size_t /*allocated*/,
                           std::size_t /*reserved*/, c10::Device device) override {
      if (!device.is_cpu()) return;
      current += bytes;
      peak = std::max(peak, current);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t current = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<Report> report_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tutti
