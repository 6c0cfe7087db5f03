#include "apps/tutti/run/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "apps/tutti/run/process_tree.h"
#include "apps/tutti/run/signal_inbox.h"
#include "apps/tutti/run/worker_process.h"
#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/say.h"
#include "base/file_descriptor.h"

namespace tutti::command {
namespace {

constexpr std::chrono::seconds kEndOfOrphans{4};

// A stopped process needs another one that resumes it: a shell with job control, outside of the
// process group and in the same session. Elsewhere, as in a container, SIGTSTP has no effect.
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
  // Wakes it where it is stopped. It is blocked: SignalInbox receives it.
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (getppid() != keeper) _exit(kSignalStatus + SIGKILL);
  setpgid(0, 0);
  become_subreaper();
  prctl(PR_SET_NAME, "tutti-run");  // `killall -9 tutti` is for the keeper
  // A process outside of a terminal's foreground group may write to it with this signal blocked.
  const sigset_t terminal_output = only(SIGTTOU);
  sigprocmask(SIG_BLOCK, &terminal_output, nullptr);
}

std::optional<RunEnd> settled(int status_line) {
  RunEnd end;
  if (read(status_line, &end, sizeof end) != static_cast<ssize_t>(sizeof end)) return {};
  return end;
}

RunEnd end_of_run(int status, const std::vector<ProcessEntry>& spared, int status_line) {
  const auto end = settled(status_line);
  if (WIFEXITED(status))  // it has ended all that was below
    return end.value_or(RunEnd{.status = WEXITSTATUS(status)});
  end_children(still_there(spared), kEndOfOrphans);
  signal(SIGPIPE, SIG_IGN);
  say(fmt::format("tutti run: the launcher was {}: all workers {} ended",
                  Ending{.by_signal = true, .code = WTERMSIG(status)}.describe(),
                  end ? "had" : "were"));
  return end.value_or(RunEnd{.status = kSignalStatus + WTERMSIG(status)});
}

// A SIGTSTP that has been passed on stays pending, and its descriptor readable, until the launcher
// has stopped.
int next_signal(const RunSignals& signals, bool is_stopping) {
  for (;;) {
    if (!is_stopping && signals.is_stop_pending()) return SIGTSTP;
    if (const int signal = signals.next(/*waits=*/is_stopping); signal != 0) return signal;
    pollfd shown{.fd = signals.descriptor(), .events = POLLIN, .revents = 0};
    poll(&shown, 1, -1);
  }
}

RunEnd keep(pid_t launcher, const RunSignals& signals, const std::vector<ProcessEntry>& spared,
            int status_line) {
  bool stopping = false;  // SIGTSTP has been passed on, and no SIGCONT since
  for (;;) {
    const int signal = next_signal(signals, stopping);
    if (signal == SIGTSTP && !somebody_can_resume()) {
      signals.drop_stop();
      continue;
    }
    if (signal != SIGCHLD) kill(launcher, signal);
    if (signal == SIGTSTP) stopping = true;
    if (signal == SIGCONT) stopping = false;
    if (signal != SIGCHLD) continue;
    int status = 0;
    // Any other ended process is an orphan that this process adopted, as the first of a container.
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      if (pid != launcher) continue;
      if (!WIFSTOPPED(status)) return end_of_run(status, spared, status_line);
      // The shell sees this process; SIGCONT is passed on when it comes.
      if (stopping) signals.obey_stop();
    }
  }
}

}  // namespace

KeptLauncher KeptLauncher::start() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Refusal(1, fmt::format("cannot start the launcher: pipe: {}", error_text(errno)));
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  KeptLauncher kept;
  // A shell that became this process by `exec` may have left processes of its own. Children of
  // theirs may become this process' children.
  const pid_t keeper = getpid();
  const std::vector<ProcessEntry> spared = descendants_of(keeper);
  const RunSignals signals;
  become_subreaper();
  const pid_t launcher = fork();
  if (launcher < 0)
    throw Refusal(1, fmt::format("cannot start the launcher: fork: {}", error_text(errno)));
  if (launcher == 0) {
    become_launcher(keeper);
    kept.status_line_ = std::move(write_end);
    kept.keeper_ = keeper;
    return kept;
  }
  setpgid(launcher, launcher);  // also here: signals may come at once
  const RunEnd end = keep(launcher, signals, spared, read_end.get());
  kept.ended_ = end.status;
  kept.interrupted_by_ = end.interrupted_by;
  return kept;
}

void KeptLauncher::end_by_signal() const {
  if (interrupted_by_ == 0) return;
  signal(interrupted_by_, SIG_DFL);
  const sigset_t own = only(interrupted_by_);
  sigprocmask(SIG_UNBLOCK, &own, nullptr);
  raise(interrupted_by_);
}

void KeptLauncher::settle(const RunEnd& end) const {
  [[maybe_unused]] const ssize_t ignored = write(status_line_.get(), &end, sizeof end);
}

}  // namespace tutti::command
