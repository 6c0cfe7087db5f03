#pragma once

// A queue of texts on disk, for text that is too much for memory and not written yet. It has two
// files without names: one takes new texts while the other is read to its end and then given back,
// so that no file system has to free a part of a file. The disk holds what has not been popped, and
// at most as much that has.
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
  static constexpr std::size_t kMost = std::size_t{1} << 30;
  /// Uses at most `most` bytes of the disk.
  explicit SpillFile(std::size_t most = kMost) : most_(most) {}

  bool empty() const { return newest_.bytes == 0 && oldest_.bytes == 0; }
  /// `kind` comes back with the text. False: nothing has been added. The files are made by the
  /// first call that needs them, in TMPDIR, else /var/tmp, else /tmp.
  bool push(int kind, std::string_view text);
  struct Entry {
    int kind = 0;
    std::string text;
  };
  /// Removes and returns the oldest text. Empty when there is none, or when it cannot be read any
  /// more: what was in its file is then lost.
  std::optional<Entry> pop();

 private:
  struct Half {
    FileDescriptor file;    ///< its offset is where the next text is written or read
    std::size_t bytes = 0;  ///< written, or not yet read
    std::size_t all = 0;    ///< that the disk holds
  };
  std::size_t most_;
  Half newest_;
  Half oldest_;
};

}  // namespace tutti::command
