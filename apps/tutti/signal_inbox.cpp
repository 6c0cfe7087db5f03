#include "signal_inbox.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>

#include "base/file_descriptor.h"
#include "process_tree.h"
#include "refusal.h"

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

sigset_t block_run_signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGCONT, SIGCHLD}) sigaddset(&wanted, signal);
  for (const int signal : {SIGINT, SIGHUP, SIGTSTP})
    if (!is_ignored(signal)) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  handle(SIGCHLD, SIG_DFL);  // were it ignored, the exit status of children would be lost
  return wanted;
}

bool is_pending(int signal) {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

void obey_pending_stop() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
}

SignalInbox::SignalInbox(pid_t keeper) : taken_(block_run_signals()), keeper_(keeper) {
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  // Only shows that there are signals; they are taken with sigtimedwait().
  file_ = FileDescriptor(signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) throw Refusal(1, fmt::format("cannot receive signals: {}", error_text(errno)));
  sigdelset(&taken_, SIGTSTP);
}

bool SignalInbox::abandoned() const { return getppid() != keeper_; }

std::optional<int> SignalInbox::next() {
  for (;;) {
    obey_stop();
    const timespec at_once{};
    const int signal = sigtimedwait(&taken_, nullptr, &at_once);
    if (signal < 0 && errno == EINTR) continue;
    if (signal < 0) return {};
    if (signal == SIGCHLD) child_ended_ = true;
    if (abandoned()) return signal;
    if (signal == SIGCHLD || signal == SIGCONT) continue;
    const auto now = Clock::now();
    if (first_request_ && now - *first_request_ < kSameRequest) continue;
    if (!first_request_) first_request_ = now;
    return signal;
  }
}

// SIGTSTP stays pending while the processes below are stopped: a SIGCONT that comes meanwhile
// cancels it, and where no process could resume this one, because the keeper has ended, it has no
// effect.
void SignalInbox::obey_stop() {
  if (!is_pending(SIGTSTP)) return;
  const auto stopped = stop_descendants();
  obey_pending_stop();
  resume(stopped);
}

}  // namespace tutti::command
