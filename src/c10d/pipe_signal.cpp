#include "c10d/pipe_signal.h"

#include <ctime>

#include "base/helper_thread.h"

namespace tutti {
namespace {

sigset_t pipe_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

WithoutPipeSignal::WithoutPipeSignal() noexcept {
  const auto set = pipe_signal();
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

WithoutPipeSignal::~WithoutPipeSignal() {
  if (!was_pending_ && sigismember(&before_, SIGPIPE) == 0) {
    const auto set = pipe_signal();
    const timespec at_once{};
    sigtimedwait(&set, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

WithoutSignals::WithoutSignals() noexcept {
  const sigset_t most = signals_of_helpers();
  pthread_sigmask(SIG_SETMASK, &most, &before_);
}

WithoutSignals::~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace tutti
