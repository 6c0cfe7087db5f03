#include "apps/tutti/run/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/file_descriptor.h"

namespace tutti::command {
namespace {

constexpr int kRoundMs = 1;  // between two looks at what is left

bool contains(std::span<const pid_t> processes, pid_t pid) {
  return std::ranges::find(processes, pid) != processes.end();
}

// "17 (a name) S 4 …": the name may hold anything, also parentheses. The start is field 22.
bool read_entry(const char* number, ProcessEntry& entry) {
  const std::string path = std::string("/proc/") + number + "/stat";
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  if (!file || read(file.get(), text.data(), text.size() - 1) <= 0) return false;
  const char* name_end = std::strrchr(text.data(), ')');
  if (!name_end ||
      std::sscanf(name_end + 1,
                  " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                  &entry.state, &entry.parent, &entry.started) != 3)
    return false;
  entry.pid = std::atoi(number);
  return true;
}

// `unshare --pid` without `--mount-proc` leaves the /proc of the outer processes there, whose
// numbers mean others here.
bool shows_own_numbers() {
  std::array<char, 32> own{};
  return readlink("/proc/self", own.data(), own.size() - 1) > 0 &&
         std::atoi(own.data()) == getpid();
}

}  // namespace

std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> all;
  if (!shows_own_numbers()) return all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (!folder) return all;
  while (const dirent* file = readdir(folder.get())) {
    ProcessEntry entry;
    if (std::isdigit(static_cast<unsigned char>(file->d_name[0])) != 0 &&
        read_entry(file->d_name, entry))
      all.push_back(entry);
  }
  return all;
}

std::vector<ProcessEntry> descendants_of(pid_t ancestor) {
  const std::vector<ProcessEntry> all = all_processes();
  std::vector<ProcessEntry> found;
  const auto add_children = [&](pid_t parent) {
    std::ranges::copy_if(all, std::back_inserter(found),
                         [&](const ProcessEntry& entry) { return entry.parent == parent; });
  };
  add_children(ancestor);
  for (std::size_t at = 0; at < found.size(); ++at) add_children(found[at].pid);
  return found;
}

std::vector<pid_t> still_there(std::span<const ProcessEntry> processes) {
  const std::vector<ProcessEntry> all = all_processes();
  std::vector<pid_t> numbers;
  for (const ProcessEntry& process : processes)
    if (std::ranges::any_of(all, [&](const ProcessEntry& entry) {
          return entry.pid == process.pid && entry.started == process.started;
        }))
      numbers.push_back(process.pid);
  return numbers;
}

namespace {

std::vector<pid_t> own_children(std::span<const pid_t> spared) {
  std::vector<pid_t> children;
  for (const ProcessEntry& entry : all_processes())
    if (entry.parent == getpid() && !contains(spared, entry.pid)) children.push_back(entry.pid);
  return children;
}

}  // namespace

void become_subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

// Only children are signalled: until this process has waited for them, their numbers are theirs.
// While any process lives below, there is a child, if only an ended one whose children have just
// been reparented.
std::vector<pid_t> end_children(std::span<const pid_t> spared, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  for (;;) {
    const std::vector<pid_t> left = own_children(spared);
    for (const pid_t pid : left)
      if (waitpid(pid, nullptr, WNOHANG) == 0) kill(pid, SIGKILL);
    if (left.empty() || Clock::now() >= end) return left;
    poll(nullptr, 0, kRoundMs);
  }
}

bool has_hidden_children(std::chrono::milliseconds limit) {
  if (!own_children({}).empty()) return false;
  const auto end = Clock::now() + limit;
  for (;;) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0) return false;
    if (ended > 0) continue;
    if (Clock::now() >= end) return true;
    poll(nullptr, 0, kRoundMs);
  }
}

void reap_children(std::span<const pid_t> spared) {
  for (const pid_t pid : own_children(spared)) waitpid(pid, nullptr, WNOHANG);
}

// Parents before their children: the number of a stopped parent's child stays that child's.
std::vector<pid_t> stop_descendants() {
  std::vector<pid_t> seen = {getpid()};
  std::vector<pid_t> stopped;
  for (std::size_t known = 0; known < seen.size();) {
    known = seen.size();
    for (const ProcessEntry& entry : all_processes()) {
      if (!contains(std::span(seen).first(known), entry.parent) || contains(seen, entry.pid))
        continue;
      seen.push_back(entry.pid);
      if (entry.state != 'T' && entry.state != 'Z' && kill(entry.pid, SIGSTOP) == 0)
        stopped.push_back(entry.pid);
    }
  }
  return stopped;
}

void resume(std::span<const pid_t> stopped) {
  for (auto pid = stopped.rbegin(); pid != stopped.rend(); ++pid) kill(*pid, SIGCONT);
}

}  // namespace tutti::command
