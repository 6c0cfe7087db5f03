#include "job/life/stop_request.h"

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

StopRequest::StopRequest(const char* failure) : event_(::eventfd(0, EFD_CLOEXEC)) {
  struct stat status {};
  if (!event_ || ::fstat(event_.get(), &status) != 0)
    throw IoError(errno, fmt::format("{}: {}", failure, error_text(errno)));
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

void StopRequest::raise() noexcept {
  raised_.store(true, std::memory_order_release);
  if (is_open()) ::eventfd_write(event_.get(), 1);
}

bool StopRequest::is_open() const noexcept {
  struct stat status {};
  return ::fstat(event_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

}  // namespace tutti
