#include "signal_inbox.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

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
  for (const int signal : {SIGINT, SIGTERM, SIGCONT, SIGCHLD}) sigaddset(&wanted, signal);
  for (const int signal : {SIGHUP, SIGTSTP})
    if (!is_ignored(signal)) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  handle(SIGCHLD, SIG_DFL);  // were it ignored, nobody could learn how a child ended
  return wanted;
}

SignalInbox::SignalInbox() : parent_(getppid()) {
  const sigset_t wanted = block_run_signals();
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  file_ = FileDescriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) throw Refusal(1, fmt::format("cannot receive signals: {}", std::strerror(errno)));
}

bool SignalInbox::abandoned() const { return getppid() != parent_; }

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info{};
  while (read(file_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTSTP) {
      const auto stopped = stop_descendants();
      raise(SIGSTOP);
      resume(stopped);
    } else if (signal == SIGCHLD) {
      child_ended_ = true;
    } else if (signal != SIGCONT) {
      return signal;
    }
  }
  return {};
}

}  // namespace tutti::command
