#pragma once

// What one worker writes: made into whole lines, prefixed with its rank, copied to its log, and the
// last few remembered for a report. The stack frames in torch's messages go to the log alone.
//
// A carriage return restarts a line, as on a terminal: of a progress display that rewrites itself
// only the last state becomes a line. "\r\n" ends a line.

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tutti/run/failure_report.h"
#include "apps/tutti/text/output.h"
#include "base/file_descriptor.h"

namespace tutti::command {

/// A message of several lines may have been written after the one that a report looks for.
inline constexpr std::size_t kRememberedLines = 50;
/// A line that grows beyond this is printed in pieces, so that memory stays bounded.
inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

/// "[ 3] " for rank 3 of 12. In colour, one of a few per rank, when asked for.
std::string rank_prefix(int rank, int size, bool colour);
/// "[0-3,5] " for what these ranks have written alike.
std::string ranks_prefix(const std::vector<int>& ascending);

class WorkerOutput {
 public:
  /// `log_file` empty: no log. Throws Refusal when it cannot be created.
  WorkerOutput(Output& output, int rank, int size, const std::string& log_file);
  /// Lines have a prefix already, and those that `takes_line` returns true for are not shown.
  WorkerOutput(Output& output, std::function<bool(const std::string&)> takes_line)
      : output_(&output), takes_line_(std::move(takes_line)) {}

  void take(Stream stream, std::string_view bytes);
  /// The stream has ended.
  void finish(Stream stream);
  /// The worker has ended, and another will write here. Remembered lines are forgotten; the log
  /// continues after `line`.
  void start_again(std::string_view line);
  /// True where the worker has written that an error of Tutti was not caught: that, and what
  /// follows it on the same stream, is not printed but kept for take_last_words().
  bool has_last_words() const { return !remembered_.last_words.empty(); }
  /// The kept lines, in the words of a user: "error (tutti::PeerLost, not caught): rank 1 ended …".
  /// Later lines are printed again.
  std::vector<std::string> take_last_words();
  const std::string& prefix(Stream stream) const {
    return parts_[stream == Stream::out ? 0 : 1].prefix;
  }
  /// What the worker has written to both streams in this attempt.
  Written written() const;

 private:
  struct Part {
    std::string rest;  ///< begins with "\r" where it is rewritten
    std::string prefix;
    bool shows_rewriting = false;
  };
  Part& part(Stream stream) { return parts_[stream == Stream::out ? 0 : 1]; }
  void print(Stream stream, std::string line);
  void write_log();

  Output* output_;
  std::function<bool(const std::string&)> takes_line_;
  std::array<Part, 2> parts_;
  FileDescriptor log_;  // not for the workers
  std::string logged_;  ///< lines that write_log() writes at once
  std::string log_file_;
  struct Remembered {
    std::deque<std::string> last_lines = {};
    std::vector<std::string> last_words = {};
    bool any_frames = false;
  };
  Remembered remembered_;  // of this attempt
};

}  // namespace tutti::command
