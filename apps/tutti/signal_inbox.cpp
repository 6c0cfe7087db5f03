#include "signal_inbox.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

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

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGINT);
  sigaddset(&wanted, SIGTERM);
  if (!is_ignored(SIGHUP)) sigaddset(&wanted, SIGHUP);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGCHLD, SIG_DFL);  // were it ignored, nobody could learn how a worker ended
  file_ = FileDescriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) throw Refusal(1, fmt::format("cannot receive signals: {}", std::strerror(errno)));
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info{};
  if (read(file_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tutti::command
