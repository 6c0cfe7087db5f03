#include "output.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <climits>

namespace tutti::command {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;        // lines are queued together up to this
constexpr std::string_view kEraseLine = "\r\x1b[K";  // ECMA-48 EL

}  // namespace

Terminals Terminals::of_process() {
  Terminals terminals{.out = isatty(STDOUT_FILENO) == 1, .error = isatty(STDERR_FILENO) == 1};
  winsize size{};
  const int terminal = terminals.out ? STDOUT_FILENO : STDERR_FILENO;
  if (ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminals.columns = size.ws_col;
  return terminals;
}

void Output::line(Stream stream, std::string_view prefix, std::string_view text) {
  const bool redraw = shown_ && terminals_.has(stream);
  if (redraw) erase_shown();
  queue(stream, prefix);
  queue(stream, text);
  queue(stream, "\n");
  if (redraw) queue(shown_->stream, shown_->text);
}

void Output::show(Stream stream, std::string_view prefix, std::string_view text) {
  // A line that wraps could not be erased. The prefix "[0] " takes four columns or a few more.
  constexpr std::size_t kPrefixColumns = 6;
  const std::size_t room = std::max<std::size_t>(terminals_.columns, kPrefixColumns + 1);
  std::string next = std::string(prefix) + std::string(cut_to_width(text, room - kPrefixColumns));
  if (shown_ && shown_->stream == stream && shown_->text == next) return;
  hide();
  queue(stream, next);
  shown_ = Shown{stream, std::move(next)};
}

void Output::hide() {
  if (!shown_) return;
  erase_shown();
  shown_.reset();
}

void Output::erase_shown() { queue(shown_->stream, kEraseLine); }

void Output::queue(Stream stream, std::string_view text) {
  if (broken(stream) || text.empty()) return;
  if (queue_.empty() || queue_.back().stream != stream ||
      queue_.back().text.size() + text.size() > kPieceBytes)
    queue_.push_back({stream, {}});
  queue_.back().text.append(text);
  pending_ += text.size();
}

int Output::next_descriptor() const {
  return queue_.empty() ? -1 : static_cast<int>(queue_.front().stream);
}

void Output::write_some() {
  if (queue_.empty()) return;
  const Piece& front = queue_.front();
  // A pipe that is ready takes this much without blocking (pipe(7)).
  const std::size_t bytes = std::min<std::size_t>(front.text.size() - written_, PIPE_BUF);
  const ssize_t taken = write(static_cast<int>(front.stream), front.text.data() + written_, bytes);
  if (taken < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    broken(front.stream) = true;
    drop_front();
    return;
  }
  written_ += static_cast<std::size_t>(taken);
  pending_ -= static_cast<std::size_t>(taken);
  if (written_ == front.text.size()) drop_front();
}

void Output::drop_front() {
  pending_ -= queue_.front().text.size() - written_;
  queue_.pop_front();
  written_ = 0;
}

std::string_view cut_to_width(std::string_view text, std::size_t columns) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool starts = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (starts && ++characters > columns) return text.substr(0, at);
  }
  return text;
}

}  // namespace tutti::command
