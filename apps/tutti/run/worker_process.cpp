#include "apps/tutti/run/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <csignal>

#include "apps/tutti/text/refusal.h"
#include "base/file_descriptor.h"

namespace tutti::command {
namespace {

constexpr int kCannotStart = 1;

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// What a child does before it executes the program.
enum class Preparation { none, death_signal, group, streams, socket, processors, descriptors };

struct StartFailure {
  int error = 0;
  Preparation at = Preparation::none;  ///< none: the program cannot be executed
};

const char* text_of(Preparation at) {
  switch (at) {
    case Preparation::death_signal:
      return "prctl(PR_SET_PDEATHSIG), which ends it with the launcher";
    case Preparation::group:
      return "setpgid, which gives it a process group of its own";
    case Preparation::streams:
      return "dup2, which connects its output";
    case Preparation::socket:
      return "fcntl(F_SETFD), which leaves it the socket to the launcher";
    case Preparation::processors:
      return "sched_setaffinity, which binds it to processors (--bind)";
    case Preparation::descriptors:
      return "setrlimit(RLIMIT_NOFILE), which gives it the limit of before";
    case Preparation::none:
      break;
  }
  return "";
}

[[noreturn]] void refuse_start(const char* what, int error) {
  throw Refusal(kCannotStart,
                fmt::format("cannot start a worker: {}: {}", what, error_text(error)));
}

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse_start("pipe", errno);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// All that the child needs between fork and exec, prepared before: other threads of the launcher
// may hold locks, so the child makes system calls only.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  pid_t launcher;
  int input, output, errors, status, inherited;
  const std::vector<unsigned long>* processors;
  const rlimit* descriptors;
};

[[noreturn]] void run_child(const ChildPlan& plan) noexcept {
  const auto report = [&](Preparation at) {
    const StartFailure failure{.error = errno, .at = at};
    [[maybe_unused]] const ssize_t ignored = write(plan.status, &failure, sizeof failure);
    _exit(kNotFoundStatus);
  };
  // Die with the launcher, also when it died before this line.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) report(Preparation::death_signal);
  if (getppid() != plan.launcher) _exit(kNotFoundStatus);
  if (setpgid(0, 0) != 0) report(Preparation::group);
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0 ||
      dup2(plan.errors, STDERR_FILENO) < 0)
    report(Preparation::streams);
  if (plan.inherited >= 0 && fcntl(plan.inherited, F_SETFD, 0) != 0) report(Preparation::socket);
  if (!plan.processors->empty() &&
      sched_setaffinity(0, plan.processors->size() * sizeof(unsigned long),
                        reinterpret_cast<const cpu_set_t*>(plan.processors->data())) != 0)
    report(Preparation::processors);
  if (setrlimit(RLIMIT_NOFILE, plan.descriptors) != 0) report(Preparation::descriptors);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &standard, nullptr);
  sigaction(SIGXFSZ, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.path, plan.arguments, plan.environment);
  report(Preparation::none);
  _exit(kNotFoundStatus);
}

// Waits for the exec: the pipe closes with it, or carries the reason why there was none.
StartFailure start_failure(int status_pipe) {
  StartFailure failure;
  ssize_t got = 0;
  do {
    got = read(status_pipe, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof failure) ? failure : StartFailure{};
}

void refuse_if_failed(const StartFailure& failure, const std::string& program) {
  if (failure.error == 0) return;
  if (failure.at == Preparation::none)
    throw Refusal(kNotExecutableStatus,
                  fmt::format("cannot run \"{}\": {}", program, error_text(failure.error)));
  const bool is_refused =
      failure.error == EPERM || failure.error == EACCES || failure.error == ENOSYS;
  throw Refusal(
      kCannotStart,
      fmt::format("cannot start a worker: {}: {}{}", text_of(failure.at), error_text(failure.error),
                  is_refused ? "; does a sandbox (seccomp) forbid it?" : ""));
}

}  // namespace

int Ending::exit_status() const { return by_signal ? kSignalStatus + code : code; }

std::string Ending::describe() const {
  if (by_signal) return fmt::format("killed by signal {} ({})", signal_name(code), code);
  return fmt::format("exit status {}", code);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("SIG{}", signal);
}

WorkerProcess WorkerProcess::start(const StartOptions& options) {
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe status = make_pipe();
  Pipe input;
  if (options.input) {
    input = make_pipe();
  } else {
    input.read = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!input.read) refuse_start("/dev/null", errno);
  }
  const std::vector<char*> arguments = pointers(options.arguments);
  const std::vector<char*> environment = pointers(options.environment);
  const ChildPlan plan{
      options.path.c_str(), arguments.data(),    environment.data(),  getpid(),
      input.read.get(),     output.write.get(),  errors.write.get(),  status.write.get(),
      options.inherited_fd, &options.processors, &options.descriptors};

  const pid_t pid = fork();
  if (pid < 0) refuse_start("fork", errno);
  if (pid == 0) run_child(plan);

  WorkerProcess worker;
  worker.pid_ = pid;
  setpgid(pid, pid);  // also here, so that the group exists whichever process comes first
  status.write.reset();
  refuse_if_failed(start_failure(status.read.get()), options.path);
  worker.end_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!worker.end_) refuse_start("pidfd_open (Linux 5.3 or later is needed)", errno);
  for (const int end : {output.read.get(), errors.read.get()}) fcntl(end, F_SETFL, O_NONBLOCK);
  worker.output_ = std::move(output.read);
  worker.errors_ = std::move(errors.read);
  worker.input_ = std::move(input.write);
  if (options.input) worker.write_input(*options.input);
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      end_(std::move(other.end_)),
      output_(std::move(other.output_)),
      errors_(std::move(other.errors_)),
      input_(std::move(other.input_)) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  signal(SIGKILL);  // whatever is left of the group
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void WorkerProcess::write_input(std::string_view text) noexcept {
  if (input_ && write(input_.get(), text.data(), text.size()) < 0) input_.reset();
}

void WorkerProcess::signal(int signal) noexcept {
  const bool asks = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGUSR1;
  if (input_ && asks) {
    input_.reset();
    return;
  }
  kill(-pid_, signal);
}

std::optional<Ending> WorkerProcess::ending() const {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_)
    return {};
  return Ending{.by_signal = info.si_code != CLD_EXITED, .code = info.si_status};
}

}  // namespace tutti::command
