#include "support/running_command.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/refused_calls.h"

namespace tutti {
namespace {

using TestClock = std::chrono::steady_clock;

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::pair<FileDescriptor, FileDescriptor> make_terminal() {
  int ours = -1;
  int theirs = -1;
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&ours, &theirs, nullptr, nullptr, &size) != 0) throw std::runtime_error("openpty");
  fcntl(ours, F_SETFD, FD_CLOEXEC);
  fcntl(theirs, F_SETFD, FD_CLOEXEC);
  return {FileDescriptor(ours), FileDescriptor(theirs)};
}

std::pair<FileDescriptor, FileDescriptor> make_small_socket() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  const int least = 1;
  setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& string : strings) result.push_back(string.data());
  result.push_back(nullptr);
  return result;
}

std::string name_of(const std::string& variable) { return variable.substr(0, variable.find('=')); }

std::vector<std::string> make_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable; ++variable) {
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return name_of(change) == name_of(*variable);
    });
    if (!changed) result.emplace_back(*variable);
  }
  for (const std::string& change : changes)
    if (change.find('=') != std::string::npos) result.push_back(change);
  return result;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

}  // namespace

RunningCommand::RunningCommand(const std::vector<std::string>& arguments,
                               const CommandSetup& setup) {
  std::vector<std::string> all = setup.before;
  all.push_back(TUTTI_COMMAND);
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = make_environment(setup.environment);
  RefusedCalls absent;
  for (const int call : setup.absent_calls) absent.add(call, ENOSYS);
  const auto argument_pointers = pointers(all);
  const auto environment_pointers = pointers(environment);
  auto [out_read, out_write] = setup.terminal ? make_terminal()
                               : setup.socket ? make_small_socket()
                                              : make_pipe();
  auto [err_read, err_write] = make_pipe();
  auto [in_read, in_write] = make_pipe();
  const int err_target = setup.terminal ? out_write.get() : err_write.get();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(120);
    setpgid(0, 0);
    for (const int ignored : {SIGHUP, SIGTSTP, SIGINT}) ::signal(ignored, SIG_DFL);  // nohup, CI
    dup2(in_read.get(), STDIN_FILENO);
    dup2(out_write.get(), STDOUT_FILENO);
    dup2(err_target, STDERR_FILENO);
    syscall(SYS_close_range, 3U, ~0U, 0U);
    if (!setup.absent_calls.empty() && !absent.install()) _exit(122);
    execvpe(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    _exit(121);
  }
  end_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!setup.input.empty() && write(in_write.get(), setup.input.data(), setup.input.size()) < 0)
    throw std::runtime_error("write");
  out_ = std::move(out_read);
  err_ = std::move(err_read);
}

RunningCommand::~RunningCommand() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

// False once everything has been read to its end.
bool RunningCommand::read_some(int timeout_ms, bool read_out) {
  std::array<pollfd, 2> polled = {
      {{read_out ? out_.get() : -1, POLLIN, 0}, {err_.get(), POLLIN, 0}}};
  if (polled[0].fd < 0 && polled[1].fd < 0) return false;
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return true;
  for (std::size_t index = 0; index < polled.size(); ++index) {
    if (polled[index].revents == 0) continue;
    std::array<char, 65536> bytes;
    const ssize_t got = read(polled[index].fd, bytes.data(), bytes.size());
    if (got > 0) {
      (index == 0 ? out : err).append(bytes.data(), static_cast<std::size_t>(got));
    } else {
      (index == 0 ? out_ : err_).reset();
    }
  }
  return true;
}

bool RunningCommand::wait_until(const std::function<bool()>& seen) {
  const auto deadline = TestClock::now() + kTestDeadline;
  while (!seen()) {
    if (TestClock::now() > deadline) return false;
    if (!read_some(100, true)) return seen();
  }
  return true;
}

bool RunningCommand::wait_for(const std::string& text, int times) {
  return wait_until([&] { return count(out, text) + count(err, text) >= times; });
}

bool RunningCommand::wait_for_numbers(const std::string& name, int times) {
  const auto whole_lines = [&](const std::string& text) {
    return count(text.substr(0, text.rfind('\n') + 1), name + "=");
  };
  return wait_until([&] { return whole_lines(out) + whole_lines(err) >= times; });
}

void RunningCommand::signal(int signal) const { kill(pid_, signal); }

std::optional<int> RunningCommand::status() {
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return {};
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int RunningCommand::finish(bool read_out) {
  const auto deadline = TestClock::now() + kTestDeadline;
  std::optional<int> ended;
  while (TestClock::now() < deadline) {
    if (!ended) ended = status();
    if (!read_some(20, read_out) && !ended) usleep(2000);
    const bool unread = (read_out && out_) || err_;
    if (ended && !unread) return *ended;
  }
  return -1;
}

Finished run_command(const std::vector<std::string>& arguments, const CommandSetup& setup) {
  RunningCommand command(arguments, setup);
  const int status = command.finish();
  return {status, command.out, command.err};
}

Finished run_script(std::vector<std::string> options, const std::string& script,
                    const CommandSetup& setup) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"/bin/sh", "-c", script});
  return run_command(options, setup);
}

WatchedProcess::WatchedProcess(pid_t pid)
    : end_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

bool WatchedProcess::ends(std::chrono::milliseconds limit) const {
  if (!exists()) return true;
  pollfd polled{end_.get(), POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(limit.count())) == 1;
}

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<int> numbers_after(const std::string& text, const std::string& name) {
  std::vector<int> numbers;
  const std::string key = name + "=";
  for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1))
    numbers.push_back(std::atoi(text.c_str() + at + key.size()));
  return numbers;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string status = read_file(entry.path() / "status");
    const auto at = status.find("\nPPid:\t");
    if (at != std::string::npos && std::atoi(status.c_str() + at + 7) == parent)
      children.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return children;
}

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "tutti-test-XXXXXX").string();
  if (!mkdtemp(path_.data())) throw std::runtime_error("mkdtemp");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void create_file(const std::string& path) { std::ofstream(path).close(); }

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  // Where a process ends between open and read, its file in /proc cannot be read: that is no more
  // than an empty text here, and an exception with iterators of the stream.
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace tutti
