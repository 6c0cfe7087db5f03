#include "apps/tutti/run/signal_inbox.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ranges>

#include "apps/tutti/run/process_tree.h"
#include "apps/tutti/text/refusal.h"
#include "base/file_descriptor.h"
#include "job/end_request.h"

namespace tutti::command {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

sigset_t only(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

RunSignals::RunSignals() {
  sigemptyset(&taken_);
  for (const int signal : {SIGTERM, SIGUSR1, SIGCONT, SIGCHLD}) sigaddset(&taken_, signal);
  for (const int signal : {SIGINT, SIGHUP, SIGTSTP})
    if (!is_ignored(signal)) sigaddset(&taken_, signal);
  sigprocmask(SIG_BLOCK, &taken_, nullptr);
  handle(SIGCHLD, SIG_DFL);  // were it ignored, the exit status of children would be lost
  // Only shows that there are signals; they are taken with sigtimedwait().
  file_ = FileDescriptor(signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) throw Refusal(1, fmt::format("cannot receive signals: {}", error_text(errno)));
  sigdelset(&taken_, SIGTSTP);
}

int RunSignals::next(bool waits) const {
  int signal = 0;
  const timespec at_once{};
  do {
    signal = sigtimedwait(&taken_, nullptr, waits ? nullptr : &at_once);
  } while (signal < 0 && errno == EINTR);
  return std::max(signal, 0);
}

bool RunSignals::is_stop_pending() const {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGTSTP) == 1;
}

void RunSignals::obey_stop() const {
  const sigset_t stop = only(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
}

SignalInbox::SignalInbox(pid_t keeper) : keeper_(keeper) {
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
}

bool SignalInbox::abandoned() const { return getppid() != keeper_; }

std::optional<int> SignalInbox::next() {
  for (;;) {
    obey_stop();
    const int signal = signals_.next();
    if (signal == 0) return {};
    if (signal == SIGCHLD) child_ended_ = true;
    if (abandoned()) return signal;
    if (signal == SIGCHLD || signal == SIGCONT) continue;
    const auto now = Clock::now();
    if (first_request_ && now - *first_request_ < kSameEndRequest) continue;
    if (!first_request_) first_request_ = now;
    return signal;
  }
}

// SIGTSTP stays pending while the processes below are stopped: a SIGCONT that comes meanwhile
// cancels it, and where no process could resume this one, because the keeper has ended, it has no
// effect.
void SignalInbox::obey_stop() {
  if (!signals_.is_stop_pending()) return;
  const auto stopped = stop_descendants();
  signals_.obey_stop();
  for (const auto pid : std::views::reverse(stopped)) kill(pid, SIGCONT);
}

}  // namespace tutti::command
