#include "support/watchdog.h"

#include <cstdio>
#include <cstdlib>

namespace tutti::test {

Watchdog::Watchdog(std::string what, std::chrono::milliseconds limit)
    : thread_([this, what = std::move(what), limit] {
        std::unique_lock lock(mutex_);
        if (over_.wait_for(lock, limit, [this] { return is_over_; })) return;
        std::fprintf(stderr, "%s takes longer than %lld ms: aborted\n", what.c_str(),
                     static_cast<long long>(limit.count()));
        std::abort();
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  thread_.join();
}

}  // namespace tutti::test
