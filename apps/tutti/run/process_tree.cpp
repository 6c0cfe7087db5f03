#include "apps/tutti/run/process_tree.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/deadline.h"

namespace tutti::command {
namespace {

namespace fs = std::filesystem;

constexpr int kRoundMs = 1;  // between two looks at what is left

// "17 (a name) T 4 …": the name may hold anything, also parentheses.
bool is_stopped(pid_t pid) {
  std::string text;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), text);
  return text.find(") T ", text.rfind(')')) != std::string::npos;
}

/// Parents before their children: the number of a stopped parent's child stays that child's.
void stop_below(pid_t parent, std::vector<pid_t>& stopped) {
  for (const pid_t pid : children_of(parent)) {
    if (!is_stopped(pid) && std::ranges::find(stopped, pid) == stopped.end() &&
        kill(pid, SIGSTOP) == 0)
      stopped.push_back(pid);
    stop_below(pid, stopped);
  }
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code failure;
  // `unshare --pid` without `--mount-proc` leaves the /proc of the outer processes there, whose
  // numbers mean others here.
  if (fs::read_symlink("/proc/self", failure) != std::to_string(getpid())) return children;
  fs::directory_iterator thread(fmt::format("/proc/{}/task", parent), failure);
  for (; !failure && thread != fs::directory_iterator(); thread.increment(failure)) {
    std::ifstream list(thread->path() / "children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

// Only children are signalled: until this process has waited for them, their numbers are theirs.
// While any process lives below, there is a child, if only an ended one whose children have just
// been reparented.
std::vector<pid_t> end_children(std::span<const pid_t> spared, std::chrono::milliseconds limit) {
  for (const auto end = Clock::now() + limit;;) {
    std::vector<pid_t> left = children_of(getpid());
    std::erase_if(left, [&](pid_t pid) { return std::ranges::count(spared, pid) > 0; });
    for (const pid_t pid : left)
      if (waitpid(pid, nullptr, WNOHANG) == 0) kill(pid, SIGKILL);
    const bool any_hidden = left.empty() && spared.empty() && waitpid(-1, nullptr, WNOHANG) >= 0;
    if ((left.empty() && !any_hidden) || Clock::now() >= end) return left;
    poll(nullptr, 0, kRoundMs);
  }
}

void reap_children(std::span<const pid_t> spared) {
  for (const pid_t pid : children_of(getpid()))
    if (std::ranges::count(spared, pid) == 0) waitpid(pid, nullptr, WNOHANG);
}

std::vector<pid_t> stop_descendants() {
  std::vector<pid_t> stopped;
  for (std::size_t known = 1; known != stopped.size();) {  // what they started meanwhile, too
    known = stopped.size();
    stop_below(getpid(), stopped);
  }
  return stopped;
}

}  // namespace tutti::command
