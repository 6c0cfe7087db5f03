#include "group_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "refusal.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

constexpr pid_t kAllEnded = 0;

void close_all_but(int kept) {
  if (kept > 0) syscall(SYS_close_range, 0U, static_cast<unsigned>(kept - 1), 0U);
  syscall(SYS_close_range, static_cast<unsigned>(kept + 1), ~0U, 0U);
}

[[noreturn]] void keep_guard(int line) {
  setsid();  // signals to the launcher's group or terminal are not meant for the guard
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(line);
  prctl(PR_SET_NAME, "tutti-guard");
  std::array<pid_t, kMaxWorkers> groups{};
  std::size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = read(line, &group, sizeof group);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof group)) break;  // the launcher is gone
    if (group == kAllEnded) _exit(0);
    if (count < groups.size()) groups[count++] = group;
  }
  for (std::size_t index = 0; index < count; ++index) kill(-groups[index], SIGKILL);
  _exit(0);
}

}  // namespace

GroupGuard GroupGuard::start() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Refusal(1, fmt::format("cannot start the guard: pipe: {}", std::strerror(errno)));
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0)
    throw Refusal(1, fmt::format("cannot start the guard: fork: {}", std::strerror(errno)));
  if (pid == 0) keep_guard(read_end.get());
  return GroupGuard(pid, std::move(write_end));
}

GroupGuard::GroupGuard(GroupGuard&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), line_(std::move(other.line_)) {}

GroupGuard::~GroupGuard() {
  if (pid_ < 0) return;
  watch(kAllEnded);
  line_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void GroupGuard::watch(pid_t group) const noexcept {
  [[maybe_unused]] const ssize_t ignored = write(line_.get(), &group, sizeof group);
}

}  // namespace tutti::command
