#include "base/helper_thread.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

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
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

void mark_helper_thread() { static const thread_local Mark mark; }

int other_threads() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/task"), ::closedir);
  if (!folder) return 1;
  const pid_t self = own_number();
  const std::lock_guard lock(marked_threads().mutex);
  const auto& marked = marked_threads().numbers;
  int others = 0;
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const auto number = static_cast<pid_t>(std::atoi(entry->d_name));  // 0: "." and ".."
    if (number == 0 || number == self) continue;
    if (std::find(marked.begin(), marked.end(), number) == marked.end()) ++others;
  }
  return errno != 0 ? std::max(others, 1) : std::max(others - kSanitizerThreads, 0);
}

}  // namespace tutti
