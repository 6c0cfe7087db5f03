#pragma once

// What the command prints: whole lines to its standard output and error, and below them, on a
// terminal, one line that rewrites itself. Writes never block for long, so that a stuck reader does
// not delay signals and the ends of workers: text is queued, and written as the reader takes it.
//
// Threads: one. Failure: a reader that has gone away is remembered; text for it is dropped. Where
// the queue is full a line says so, the first time, and full() asks to wait for the reader.

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace tutti::command {

/// More text than this is left with the workers.
inline constexpr std::size_t kMaxQueued = std::size_t{64} << 20;

enum class Stream { out = 1, error = 2 };  // the descriptors' numbers

class Output {
 public:
  bool is_terminal(Stream stream) const { return way(stream).is_terminal; }
  /// Queues a line.
  void line(Stream stream, std::string_view prefix, std::string_view text);
  /// Shows `text`, which the terminal cuts to its width, in place of what was shown so before.
  void show(Stream stream, std::string_view text);

  bool empty() const { return queue_.empty(); }
  /// Whether callers should leave new text where it is.
  bool full() const { return queued_ >= kMaxQueued; }
  /// The descriptor of the next byte; -1 when there is none.
  int next_descriptor() const { return empty() ? -1 : way(queue_.front().stream).descriptor(); }
  /// Writes a piece. To be called when next_descriptor() is ready for writing. False: nothing could
  /// be written.
  bool write_some();
  /// The errno with which standard output failed, such as EPIPE when its reader has ended; 0: it
  /// has not.
  int out_failure() const { return way(Stream::out).failure; }

 private:
  struct Piece {
    Stream stream;
    std::string text;
  };
  struct Way {
    explicit Way(int fd);
    int descriptor() const { return own ? own.get() : inherited; }
    int inherited;
    bool is_terminal;
    FileDescriptor own;  ///< of a terminal, in place of the inherited one
    int failure = 0;
  };
  const Way& way(Stream stream) const { return ways_[stream == Stream::out ? 0 : 1]; }
  void queue(Stream stream, std::string text);

  std::array<Way, 2> ways_ = {Way(1), Way(2)};
  std::string shown_;
  std::deque<Piece> queue_;
  std::size_t queued_ = 0;   ///< bytes
  std::size_t written_ = 0;  ///< of the first piece
  bool was_full_ = false;
};

}  // namespace tutti::command
