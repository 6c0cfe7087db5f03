#pragma once

// Makes whole lines of a stream that arrives in pieces.
//
// A carriage return restarts the line, as on a terminal: of a progress display that rewrites itself
// only the last state becomes a line. "\r\n" ends a line.

#include <string>
#include <string_view>
#include <vector>

namespace tutti::command {

/// A line that grows beyond this is handed on in pieces, so that memory stays bounded.
inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

class LineAssembler {
 public:
  /// Takes the next bytes; returns the lines they complete, without line ends.
  std::vector<std::string> feed(std::string_view bytes);
  /// Ends the stream, and returns its unfinished line, if there is one.
  std::vector<std::string> finish();
  /// The unfinished line is a display that rewrites itself; unfinished() is its present state.
  bool rewrites() const { return rewritten_ || carriage_return_; }
  const std::string& unfinished() const { return text_; }

 private:
  void complete(std::vector<std::string>& lines);

  std::string text_;
  bool carriage_return_ = false;  // the last byte was one: the next byte decides what it means
  bool rewritten_ = false;
};

}  // namespace tutti::command
