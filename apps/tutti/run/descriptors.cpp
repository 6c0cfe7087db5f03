#include "apps/tutti/run/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <memory>

#include "base/number.h"

namespace tutti::command {
namespace {

constexpr rlim_t kMaxTried = 1 << 16;  // where /proc is missing and the limit is "unlimited"

void close_on_exec(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (fd > STDERR_FILENO && flags >= 0) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

}  // namespace

void close_inherited_on_exec() {
  if (const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
      folder) {
    while (const dirent* file = readdir(folder.get()))
      close_on_exec(parse_number<int>(file->d_name).value_or(-1));
    return;
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMaxTried));
  for (int fd = 0; fd < end; ++fd) close_on_exec(fd);
}

}  // namespace tutti::command
