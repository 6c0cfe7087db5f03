#pragma once

// Owner of a file descriptor: closes it once.

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
  /// As reset(), and whether all that was written could be kept: some file systems, those of a
  /// network above all, say only here that a disk is full. False: errno says why.
  bool close() noexcept;
  /// A second descriptor of the same file, close-on-exec.
  FileDescriptor duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace tutti
