#pragma once

// Tells the process that made it from the children that it makes by fork(): they have a copy of all
// its objects, and must not speak in its name.
//
// Threads: any. Failure: none.

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace tutti {

class ProcessMark {
 public:
  ProcessMark() noexcept;
  ~ProcessMark();
  ProcessMark(const ProcessMark&) = delete;
  ProcessMark& operator=(const ProcessMark&) = delete;

  /// False in a child. A load, unless the kernel lacks MADV_WIPEONFORK.
  bool is_own() const noexcept {
    if (page_ != nullptr) [[likely]] {
      return page_->load(std::memory_order_relaxed) != 0;
    }
    return has_same_pid();
  }

 private:
  bool has_same_pid() const noexcept;

  std::atomic<std::uint32_t>* page_ = nullptr;  ///< 1, which fork() makes 0 in the child
  pid_t pid_;
};

}  // namespace tutti
