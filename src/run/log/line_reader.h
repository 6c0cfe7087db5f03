#pragma once

// The lines of a file of any size, one at a time.
//
// Threads: one at a time. Failure: that of Files, and Corrupt for a line that no memory should
// hold.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace tutti {

/// Longest line that is taken.
inline constexpr std::size_t kMaxLineBytes = std::size_t{256} << 20;

class LineReader {
 public:
  /// Reads from `offset` on; keeps references.
  LineReader(const Files& files, const File& file, std::uint64_t offset = 0)
      : files_(files), file_(file), offset_(offset) {}

  /// The next line that ends with a newline, without it; valid until the next call. Nothing at the
  /// end of the file.
  std::optional<std::string_view> next();
  /// The offset in the file of the line that next() has returned last.
  std::uint64_t begin() const noexcept { return line_begin_; }
  /// Whether the file ends within a line, once next() has returned nothing.
  bool ends_within_line() const noexcept { return !buffer_.empty(); }

 private:
  bool fill();

  const Files& files_;
  const File& file_;
  std::uint64_t offset_;  // of the buffer in the file
  std::uint64_t line_begin_ = 0;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes of the buffer that were given out
};

}  // namespace tutti
