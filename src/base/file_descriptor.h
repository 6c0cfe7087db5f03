#pragma once

// Owner of a file descriptor: closes it once.

#include <string>
#include <utility>

namespace tutti {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;
  /// Closes as reset() does. Returns false, with errno, where what was written could not be kept:
  /// some file systems, above all those of a network, report a full disk only here.
  bool close() noexcept;
  /// A second descriptor of the same file, close-on-exec.
  FileDescriptor duplicate() const;

 private:
  int fd_ = -1;
};

/// The system's words for an errno; with the limit, where there are too many descriptors.
std::string error_text(int code);

}  // namespace tutti
