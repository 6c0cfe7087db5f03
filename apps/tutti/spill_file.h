#pragma once

// A queue of texts in a file without a name, for text that is too much for memory and not written
// yet. The disk holds what has not been popped and 1 MiB at most. Where the file system cannot free
// a part of a file, what has been popped stays until the queue is empty, and counts as if it had
// not.
//
// Threads: one. Failure: push() returns false, with errno.

#include <sys/types.h>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace tutti::command {

class SpillFile {
 public:
  static constexpr off_t kMost = off_t{1} << 30;
  /// Uses at most `most` bytes of the disk.
  explicit SpillFile(off_t most = kMost) : most_(most) {}

  bool empty() const { return read_at_ == end_; }
  /// `kind` comes back with the text. False: nothing has been added. The file is made by the first
  /// call, in TMPDIR, else /var/tmp, else /tmp.
  bool push(int kind, std::string_view text);
  struct Entry {
    int kind = 0;
    std::string text;
  };
  /// Removes and returns the oldest text. Empty when the file is empty, or cannot be read any more:
  /// its content is then lost.
  std::optional<Entry> pop();

 private:
  struct Header {
    int kind;
    std::size_t bytes;
  };
  bool write_all(const void* bytes, std::size_t count, off_t at);
  bool read_all(void* bytes, std::size_t count, off_t at);
  void free_what_was_read();
  void cut(off_t bytes);

  off_t most_;
  FileDescriptor file_;
  off_t read_at_ = 0;
  off_t end_ = 0;
  off_t freed_ = 0;  // no byte before it is on the disk
};

}  // namespace tutti::command
