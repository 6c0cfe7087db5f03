#include "base/file_descriptor.h"

#include <fcntl.h>
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

FileDescriptor FileDescriptor::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  if (copy < 0)
    throw IoError(errno,
                  fmt::format("cannot duplicate a file descriptor: {}", std::strerror(errno)));
  return FileDescriptor(copy);
}

}  // namespace tutti
