#pragma once

// What the command prints: whole lines to its standard output and error, and at most one line that
// rewrites itself on a terminal. Writes never block for long, so that a stuck reader does not delay
// signals and the ends of workers: text is queued here, and in a file where there is much of it,
// and is written as the reader takes it.
//
// Threads: one. Failure: a reader that has gone away is remembered; text for it is dropped. When
// the file cannot take more, a line says so, the first time, and full() asks to wait for the
// reader.

#include <sys/types.h>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "apps/tutti/text/spill_file.h"
#include "base/file_descriptor.h"

namespace tutti::command {

/// More text than this goes to a file, the oldest first.
inline constexpr std::size_t kMaxInMemory = std::size_t{1} << 20;

enum class Stream { out = 1, error = 2 };  // the descriptors' numbers

struct Terminals {
  bool out = false;
  bool error = false;
  std::size_t columns = 80;

  bool has(Stream stream) const { return stream == Stream::out ? out : error; }
  /// The kinds of this process's descriptors 1 and 2.
  static Terminals of_process();
};

class Output {
 public:
  explicit Output(Terminals terminals);

  /// Queues a line.
  void line(Stream stream, std::string_view prefix, std::string_view text);
  /// Shows `text` below all lines, in place of what was shown so before. `stream` is a terminal.
  void show(Stream stream, std::string_view prefix, std::string_view text);
  /// Takes it away where `stream` shows it.
  void hide(Stream stream);

  bool empty() const { return next_.text.empty(); }
  /// Whether there is no room for more: callers should leave new text where it is.
  bool full() const { return newest_bytes_ >= kMaxInMemory; }
  /// The descriptor of the next byte; -1 when there is none.
  int next_descriptor() const { return empty() ? -1 : descriptor(next_.stream); }
  /// Writes a piece. To be called when next_descriptor() is ready for writing. False: nothing could
  /// be written.
  bool write_some();
  /// The errno with which standard output failed, such as EPIPE when its reader has ended; 0: it
  /// has not.
  int out_failure() const { return out_.failure; }

 private:
  struct Piece {
    Stream stream = Stream::out;
    std::string text = {};
  };
  /// How a stream is written.
  struct Way {
    FileDescriptor own = {};  ///< of a terminal, in place of the inherited one
    bool is_socket = false;
    int failure = 0;
  };
  static Way way_to(Stream stream, bool terminal);
  Way& way(Stream stream) { return stream == Stream::out ? out_ : error_; }
  int descriptor(Stream stream) const;
  void queue(Stream stream, std::string text);
  void add_newest(Piece piece);
  bool spill();
  void take_next();

  Terminals terminals_;
  Way out_;
  Way error_;
  std::optional<Piece> shown_;

  // The queue has this order.
  Piece next_;
  std::size_t written_ = 0;  ///< of it
  SpillFile file_;
  std::deque<Piece> newest_;
  std::size_t newest_bytes_ = 0;

  bool file_refuses_ = false;
  bool refusal_said_ = false;
};

/// The first `columns` characters of UTF-8 text.
std::string_view cut_to_width(std::string_view text, std::size_t columns);

}  // namespace tutti::command
