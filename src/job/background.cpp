#include "job/background.h"

#include <algorithm>

#include "base/helper_thread.h"
#include "base/scoped_flag.h"

namespace tutti {

void Background::add(Unfinished& what) {
  const std::lock_guard lock(mutex_);
  all_.emplace_back(&what, program_thread());
  count_.store(static_cast<int>(all_.size()), std::memory_order_relaxed);
}

void Background::remove(Unfinished& what) {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const auto& entry) { return entry.first == &what; });
  count_.store(static_cast<int>(all_.size()), std::memory_order_relaxed);
}

bool Background::progress() {
  // Progress may itself have to wait, for a member that is writing the reason why a group ended.
  thread_local bool is_moving = false;
  if (is_moving || is_empty()) return false;
  const std::lock_guard lock(mutex_);
  const ScopedFlag moving(is_moving);
  bool moved = false;
  for (const auto& [what, thread] : all_) {
    if (thread == program_thread() && what->progress()) moved = true;
  }
  return moved;
}

}  // namespace tutti
