#include "base/helper_thread.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/number.h"
#include "tutti/error.h"

namespace tutti {
namespace {

pid_t own_number() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Numbers of the marked threads. Never destroyed: threads may end after everything else has.
struct MarkedThreads {
  std::mutex mutex;
  std::vector<pid_t> numbers;
};
MarkedThreads& marked_threads() {
  static auto* const threads = new MarkedThreads;
  return *threads;
}

/// A thread's mark, for as long as it runs: its number may be given to another one afterwards.
class Mark {
 public:
  Mark() {
    const std::lock_guard lock(marked_threads().mutex);
    marked_threads().numbers.push_back(number_);
  }
  ~Mark() {
    const std::lock_guard lock(marked_threads().mutex);
    std::erase(marked_threads().numbers, number_);
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  pid_t number_ = own_number();
};

const void* own_mark() noexcept {
  thread_local char mark;
  return &mark;
}
/// Which the calling thread works for; no mark: itself.
thread_local ProgramThread other_thread;

int blocked_by_helpers() { return SIGRTMIN + 12; }
int open_to_helpers() { return SIGRTMIN + 13; }

/// Whether the thread was started under StartsHelpers, or with signals_of_helpers().
bool has_mask_of_helpers(pid_t number) {
  std::ifstream status("/proc/self/task/" + std::to_string(number) + "/status");
  constexpr std::string_view kBlocked = "SigBlk:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kBlocked)) continue;
    const auto mask = std::strtoull(line.c_str() + kBlocked.size(), nullptr, 16);
    const auto blocks = [&](int signal) { return (mask >> (signal - 1) & 1) != 0; };
    return blocks(blocked_by_helpers()) && !blocks(open_to_helpers());
  }
  return false;
}

std::string text_of_limit(int which, rlim_t unit) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / unit);
}

/// "cannot start the thread …": the system gives one reason for several limits.
std::string text_without_thread(const char* name, int code) {
  auto text = fmt::format("cannot start the thread \"{}\": {}", name, std::strerror(code));
  if (code != EAGAIN) return text;
  std::string pids = "unknown";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    constexpr std::string_view kOfVersion2 = "0::";
    if (!line.starts_with(kOfVersion2)) continue;
    std::ifstream("/sys/fs/cgroup" + line.substr(kOfVersion2.size()) + "/pids.max") >> pids;
  }
  constexpr rlim_t kKib = 1024;
  return text + fmt::format(
                    "; raise what is too low: `ulimit -u` (processes and threads of this "
                    "user) is {}, pids.max of the control group is {}, `ulimit -v` (KiB "
                    "of addresses) is {}",
                    text_of_limit(RLIMIT_NPROC, 1), pids, text_of_limit(RLIMIT_AS, kKib));
}

/// The thread sanitizer has one of its own.
#if defined(__SANITIZE_THREAD__)
constexpr int kSanitizerThreads = 1;
#else
constexpr int kSanitizerThreads = 0;
#endif

}  // namespace

std::thread start_helper_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread([body = std::move(body)] {
      mark_helper_thread();
      body();
    });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw IoError(error.code().value(), text_without_thread(name, error.code().value()));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

StartsHelpers::StartsHelpers() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, blocked_by_helpers());
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

StartsHelpers::~StartsHelpers() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

sigset_t signals_of_helpers() noexcept {
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, open_to_helpers());
  return set;
}

void mark_helper_thread() { static const thread_local Mark mark; }

int other_threads() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/task"), ::closedir);
  if (!folder) return 1;
  const pid_t self = own_number();
  const pid_t waits_for_self = other_thread.number;
  const std::lock_guard lock(marked_threads().mutex);
  const auto& marked = marked_threads().numbers;
  int others = 0;
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const auto number = parse_number<pid_t>(entry->d_name);  // none: "." and ".."
    if (!number || *number == self || *number == waits_for_self) continue;
    const bool is_marked = std::find(marked.begin(), marked.end(), *number) != marked.end();
    if (!is_marked && !has_mask_of_helpers(*number)) ++others;
    errno = 0;
  }
  return errno != 0 ? std::max(others, 1) : std::max(others - kSanitizerThreads, 0);
}

ProgramThread ProgramThread::own() noexcept { return {own_mark(), own_number()}; }

const void* program_thread() noexcept {
  return other_thread.mark != nullptr ? other_thread.mark : own_mark();
}

/// Work for the calling thread itself, within work for another one, is that one's.
WorksFor::WorksFor(const ProgramThread& other) : before_(other_thread) {
  if (other.mark == program_thread() || other.mark == own_mark()) return;
  mark_helper_thread();
  other_thread = other;
}

WorksFor::~WorksFor() { other_thread = before_; }

}  // namespace tutti
