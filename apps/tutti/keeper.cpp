#include "keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "process_tree.h"
#include "refusal.h"
#include "signal_inbox.h"
#include "worker_process.h"

namespace tutti::command {
namespace {

constexpr std::chrono::seconds kEndOfOrphans{4};

// A stopped process needs somebody who resumes it: a shell with job control, outside of the process
// group and in the same session. Elsewhere, as in a container, SIGTSTP has no effect.
bool somebody_can_resume() {
  const auto processes = all_processes();
  const pid_t group = getpgrp();
  pid_t ancestor = getppid();
  while (ancestor > 0 && getpgid(ancestor) == group) {
    const auto entry = std::find_if(processes.begin(), processes.end(),
                                    [&](const auto& each) { return each.pid == ancestor; });
    ancestor = entry == processes.end() ? 0 : entry->parent;
  }
  return ancestor > 0 && getsid(ancestor) == getsid(0);
}

void become_launcher(pid_t keeper) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // blocked: SignalInbox receives it
  if (getppid() != keeper) _exit(kSignalStatus + SIGTERM);
  setpgid(0, 0);
  become_subreaper();
  prctl(PR_SET_NAME, "tutti-run");  // `killall -9 tutti` is for the keeper
  // A process outside of a terminal's foreground group may write to it with this signal blocked.
  sigset_t terminal_output;
  sigemptyset(&terminal_output);
  sigaddset(&terminal_output, SIGTTOU);
  sigprocmask(SIG_BLOCK, &terminal_output, nullptr);
}

std::optional<int> settled(int status_line) {
  int status = 0;
  if (read(status_line, &status, sizeof status) != static_cast<ssize_t>(sizeof status)) return {};
  return status;
}

int status_of_end(int status, const std::vector<pid_t>& spared, int status_line) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);  // it has ended all that was below
  end_children(spared, kEndOfOrphans);
  signal(SIGPIPE, SIG_IGN);
  const auto run_status = settled(status_line);
  fmt::print(stderr, "tutti run: the launcher was {}: all workers {} ended\n",
             Ending{.by_signal = true, .code = WTERMSIG(status)}.describe(),
             run_status ? "had" : "were");
  if (run_status) return *run_status;
  return kSignalStatus + WTERMSIG(status);
}

int keep(pid_t launcher, const sigset_t& signals, const std::vector<pid_t>& spared,
         int status_line) {
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal == SIGTSTP && !somebody_can_resume()) continue;
    if (signal > 0 && signal != SIGCHLD) kill(launcher, signal);
    if (signal != SIGCHLD) continue;
    int status = 0;
    // Whoever else has ended is an orphan that this process adopted, as the first of a container.
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      if (pid != launcher) continue;
      if (!WIFSTOPPED(status)) return status_of_end(status, spared, status_line);
      raise(SIGSTOP);  // the shell sees this process; SIGCONT is passed on when it comes
    }
  }
}

}  // namespace

KeptLauncher KeptLauncher::start() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Refusal(1, fmt::format("cannot start the launcher: pipe: {}", std::strerror(errno)));
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  KeptLauncher kept;
  // A shell that became this process by `exec` may have left children of its own.
  const pid_t keeper = getpid();
  const std::vector<pid_t> spared = children_of(keeper);
  const sigset_t signals = block_run_signals();
  become_subreaper();
  const pid_t launcher = fork();
  if (launcher < 0)
    throw Refusal(1, fmt::format("cannot start the launcher: fork: {}", std::strerror(errno)));
  if (launcher == 0) {
    become_launcher(keeper);
    kept.status_line_ = std::move(write_end);
    return kept;
  }
  setpgid(launcher, launcher);  // also here: signals may come at once
  kept.ended_ = keep(launcher, signals, spared, read_end.get());
  return kept;
}

void KeptLauncher::settle(int status) const {
  [[maybe_unused]] const ssize_t ignored = write(status_line_.get(), &status, sizeof status);
}

}  // namespace tutti::command
