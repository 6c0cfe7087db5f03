#include "base/file_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

void FileDescriptor::reset() noexcept { close(); }

bool FileDescriptor::close() noexcept {
  // Interrupted, it is closed all the same (close(2)).
  return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR;
}

std::string error_text(int code) {
  rlimit limit{};
  if (code != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::strerror(code);
  return fmt::format("{}; `ulimit -n` is {}, raise it", std::strerror(code), limit.rlim_cur);
}

FileDescriptor FileDescriptor::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  if (copy < 0)
    throw IoError(errno, fmt::format("cannot duplicate a file descriptor: {}", error_text(errno)));
  return FileDescriptor(copy);
}

}  // namespace tutti
