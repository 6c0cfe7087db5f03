#include "run/log/line_reader.h"

#include <span>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t{1} << 20;

}  // namespace

std::optional<std::string_view> LineReader::next() {
  std::size_t searched = taken_;
  std::size_t end = buffer_.find('\n', searched);
  while (end == std::string::npos) {
    searched = buffer_.size() - taken_;  // fill() drops what was taken
    if (!fill()) return std::nullopt;
    end = buffer_.find('\n', searched);
  }
  line_begin_ = offset_ + taken_;
  const std::string_view line = std::string_view(buffer_).substr(taken_, end - taken_);
  taken_ = end + 1;
  return line;
}

bool LineReader::fill() {
  buffer_.erase(0, taken_);
  offset_ += taken_;
  taken_ = 0;
  const std::size_t had = buffer_.size();
  if (had > kMaxLineBytes)
    throw Corrupt(
        fmt::format("{} has a line of more than {} bytes", file_.path.string(), kMaxLineBytes));
  buffer_.resize(had + kReadAtOnce);
  const std::size_t read = files_.read_some(
      file_, offset_ + had, std::as_writable_bytes(std::span(buffer_)).subspan(had));
  buffer_.resize(had + read);
  return read > 0;
}

}  // namespace tutti
