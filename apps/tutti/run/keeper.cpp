#include "apps/tutti/run/keeper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <new>
#include <optional>
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

void become_launcher(pid_t keeper) {
  // Wakes it where it is stopped. It is blocked: SignalInbox receives it.
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (getppid() != keeper) _exit(kSignalStatus + SIGKILL);
  setpgid(0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "tutti-run");  // `killall -9 tutti` is for the keeper
  // A process outside of a terminal's foreground group may write to it with this signal blocked.
  const sigset_t terminal_output = only(SIGTTOU);
  sigprocmask(SIG_BLOCK, &terminal_output, nullptr);
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

/// The launcher's end, as waitpid() tells it. `spared` children are not waited for, so that their
/// numbers stay theirs.
int keep(pid_t launcher, const RunSignals& signals, const std::vector<pid_t>& spared) {
  bool stopping = false;  // SIGTSTP has been passed on, and no SIGCONT since
  for (;;) {
    const int signal = next_signal(signals, stopping);
    if (signal != SIGCHLD) kill(launcher, signal);
    if (signal == SIGTSTP) stopping = true;
    if (signal == SIGCONT) stopping = false;
    if (signal != SIGCHLD) continue;
    int status = 0;
    if (waitpid(launcher, &status, WNOHANG | WUNTRACED) > 0) {
      if (!WIFSTOPPED(status)) return status;
      if (!stopping) continue;
      // The shell sees this process. Where no process could resume it, as in a container, the
      // system does not stop it.
      signals.obey_stop();
      stopping = false;
      kill(launcher, SIGCONT);
    }
    // Orphans that this process adopted, as the first of a container.
    auto own = spared;
    own.push_back(launcher);
    reap_children(own);
  }
}

[[noreturn]] void end_as(const RunEnd& end) {
  if (end.interrupted_by != 0) {
    signal(end.interrupted_by, SIG_DFL);
    const sigset_t own = only(end.interrupted_by);
    sigprocmask(SIG_UNBLOCK, &own, nullptr);
    raise(end.interrupted_by);  // without effect in the first process of a container
  }
  std::exit(end.status);
}

}  // namespace

Kept start_launcher() {
  void* const memory = mmap(nullptr, sizeof(std::optional<RunEnd>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Refusal(1, fmt::format("cannot start the launcher: mmap: {}", error_text(errno)));
  auto* const settled = new (memory) std::optional<RunEnd>;
  const pid_t keeper = getpid();
  // A shell that became this process by `exec` may have left processes of its own.
  const std::vector<pid_t> spared = children_of(keeper);
  const RunSignals signals;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t launcher = fork();
  if (launcher < 0)
    throw Refusal(1, fmt::format("cannot start the launcher: fork: {}", error_text(errno)));
  if (launcher == 0) {
    become_launcher(keeper);
    return {keeper, [settled](const RunEnd& end) { *settled = end; }};
  }
  setpgid(launcher, launcher);  // also here: signals may come at once
  const int status = keep(launcher, signals, spared);
  if (WIFEXITED(status))  // it has ended all that was below
    end_as(settled->value_or(RunEnd{.status = WEXITSTATUS(status)}));
  end_children(spared, kEndOfOrphans);
  signal(SIGPIPE, SIG_IGN);
  say(fmt::format("tutti run: the launcher was {}: all workers {} ended",
                  Ending{.by_signal = true, .code = WTERMSIG(status)}.describe(),
                  *settled ? "had" : "were"));
  end_as(settled->value_or(RunEnd{.status = kSignalStatus + WTERMSIG(status)}));
}

}  // namespace tutti::command
