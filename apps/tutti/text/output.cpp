#include "apps/tutti/text/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace tutti::command {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;        // lines are queued together up to this
constexpr std::string_view kEraseLine = "\r\x1b[K";  // ECMA-48 EL

// Pause for a reader that is ready but takes nothing: a terminal with too little room for a line's
// end, or a socket that others fill.
constexpr int kPauseMs = 10;

}  // namespace

Terminals Terminals::of_process() {
  Terminals terminals{.out = isatty(STDOUT_FILENO) == 1, .error = isatty(STDERR_FILENO) == 1};
  winsize size{};
  const int terminal = terminals.out ? STDOUT_FILENO : STDERR_FILENO;
  if (ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminals.columns = size.ws_col;
  return terminals;
}

Output::Output(Terminals terminals)
    : terminals_(terminals),
      out_(way_to(Stream::out, terminals.out)),
      error_(way_to(Stream::error, terminals.error)) {}

// A terminal is ready for writing when it takes a single byte: a longer write would wait. It is
// opened once more, so that processes that share the inherited descriptor are not made to write
// without blocking; but for the master of one, of which that would make a new pair.
Output::Way Output::way_to(Stream stream, bool terminal) {
  const int fd = static_cast<int>(stream);
  int number = 0;
  struct stat info {};
  if (!terminal) return {.is_socket = fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)};
  if (ioctl(fd, TIOCGPTN, &number) == 0) return {};
  return {.own = FileDescriptor(open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                                     O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC))};
}

void Output::line(Stream stream, std::string_view prefix, std::string_view text) {
  const bool redraw = shown_ && terminals_.has(stream);
  if (redraw) queue(shown_->stream, std::string(kEraseLine));
  queue(stream, fmt::format("{}{}\n", prefix, text));
  if (redraw) queue(shown_->stream, shown_->text);
}

void Output::show(Stream stream, std::string_view prefix, std::string_view text) {
  // A line that wraps could not be erased. The prefix "[0] " takes four columns or a few more.
  constexpr std::size_t kPrefixColumns = 6;
  const std::size_t room = std::max<std::size_t>(terminals_.columns, kPrefixColumns + 1);
  std::string next = std::string(prefix) + std::string(cut_to_width(text, room - kPrefixColumns));
  if (shown_ && shown_->stream == stream && shown_->text == next) return;
  if (shown_) hide(shown_->stream);
  queue(stream, next);
  shown_ = Piece{stream, std::move(next)};
}

void Output::hide(Stream stream) {
  if (!shown_ || shown_->stream != stream) return;
  queue(stream, std::string(kEraseLine));
  shown_.reset();
}

void Output::queue(Stream stream, std::string text) {
  if (way(stream).failure != 0 || text.empty()) return;
  add_newest({stream, std::move(text)});
  if (empty()) take_next();
  while (full() && spill()) {
  }
}

void Output::add_newest(Piece piece) {
  newest_bytes_ += piece.text.size();
  const bool joins = !newest_.empty() && newest_.back().stream == piece.stream &&
                     newest_.back().text.size() + piece.text.size() <= kPieceBytes;
  if (joins) newest_.back().text += piece.text;
  if (!joins) newest_.push_back(std::move(piece));
}

// Moves the oldest piece to the file. A refusal is told once, because a slow reader fills the file
// repeatedly.
bool Output::spill() {
  if (file_refuses_) return false;
  const Piece& oldest = newest_.front();
  if (file_.push(static_cast<int>(oldest.stream), oldest.text)) {
    newest_bytes_ -= oldest.text.size();
    newest_.pop_front();
    return true;
  }
  file_refuses_ = true;
  if (!std::exchange(refusal_said_, true))
    add_newest({Stream::error, fmt::format("tutti run: cannot keep more of what nobody reads: {}; "
                                           "workers wait for the reader\n",
                                           std::strerror(errno))});
  return false;
}

void Output::take_next() {
  next_ = {};
  written_ = 0;
  if (!file_.empty()) {
    auto entry = file_.pop();
    next_ = entry ? Piece{static_cast<Stream>(entry->kind), std::move(entry->text)}
                  : Piece{Stream::error,
                          fmt::format("tutti run: some of the workers' output is lost: {}\n",
                                      std::strerror(errno))};
    return;
  }
  file_refuses_ = false;
  if (newest_.empty()) return;
  next_ = std::move(newest_.front());
  newest_.pop_front();
  newest_bytes_ -= next_.text.size();
}

int Output::descriptor(Stream stream) const {
  const FileDescriptor& own = stream == Stream::out ? out_.own : error_.own;
  return own ? own.get() : static_cast<int>(stream);
}

bool Output::write_some() {
  if (empty()) return false;
  // A pipe that is ready takes this much without blocking (pipe(7)). A socket that is ready may
  // take a part and wait with the rest: the flag applies to this call alone, so that processes that
  // share it are not made to write without blocking.
  const auto text = std::string_view(next_.text).substr(written_, PIPE_BUF);
  const int to = next_descriptor();
  Way& through = way(next_.stream);
  const ssize_t taken = through.is_socket ? send(to, text.data(), text.size(), MSG_DONTWAIT)
                                          : write(to, text.data(), text.size());
  if (taken < 0 && errno == EAGAIN) poll(nullptr, 0, kPauseMs);
  if (taken < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (taken < 0) through.failure = errno;
  written_ += static_cast<std::size_t>(std::max<ssize_t>(taken, 0));
  if (taken < 0 || written_ == next_.text.size()) take_next();
  return true;
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
