#include "apps/tutti/text/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace tutti::command {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;        // lines are queued together up to this
constexpr std::string_view kEraseLine = "\r\x1b[K";  // ECMA-48 EL

// Pause for a reader that is ready but takes nothing: a terminal with too little room for a line's
// end, or a socket that others fill.
constexpr int kPauseMs = 10;

}  // namespace

// A terminal is ready for writing when it takes a single byte: a longer write would wait. It is
// opened once more, so that processes that share the inherited descriptor are not made to write
// without blocking; but for the master of one, of which that would make a new pair.
Output::Way::Way(int fd) : inherited(fd), is_terminal(isatty(fd) == 1) {
  int number = 0;
  if (is_terminal && ioctl(fd, TIOCGPTN, &number) != 0)
    own = FileDescriptor(open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                              O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
}

void Output::line(Stream stream, std::string_view prefix, std::string_view text) {
  const bool redraws = is_terminal(stream) && !shown_.empty();
  queue(stream,
        fmt::format("{}{}{}\n{}", redraws ? kEraseLine : "", prefix, text, redraws ? shown_ : ""));
}

void Output::show(Stream stream, std::string_view text) {
  // A line that wraps could not be erased: DEC private mode 7 is off for it.
  std::string next = text.empty() ? "" : fmt::format("\x1b[?7l{}\x1b[?7h", text);
  if (next == shown_) return;
  queue(stream, fmt::format("{}{}", shown_.empty() ? "" : kEraseLine, next));
  shown_ = std::move(next);
}

void Output::queue(Stream stream, std::string text) {
  if (way(stream).failure != 0) return;
  queued_ += text.size();
  const bool joins = queue_.size() > 1 && queue_.back().stream == stream &&
                     queue_.back().text.size() + text.size() <= kPieceBytes;
  if (joins) {
    queue_.back().text += text;
  } else {
    queue_.push_back({stream, std::move(text)});
  }
  if (full() && !std::exchange(was_full_, true))
    line(Stream::error, "",
         fmt::format("tutti run: cannot keep more than {} MiB of what nobody reads; workers wait "
                     "for the reader",
                     kMaxQueued >> 20));
}

bool Output::write_some() {
  if (empty()) return false;
  // A pipe that is ready takes this much without blocking (pipe(7)). A socket that is ready may
  // take a part and wait with the rest: the flag applies to this call alone, so that processes that
  // share it are not made to write without blocking.
  const Piece& next = queue_.front();
  const auto text = std::string_view(next.text).substr(written_, PIPE_BUF);
  const int to = next_descriptor();
  ssize_t taken = send(to, text.data(), text.size(), MSG_DONTWAIT);
  if (taken < 0 && errno == ENOTSOCK) taken = write(to, text.data(), text.size());
  if (taken < 0 && (errno == EINTR || errno == EAGAIN)) {
    poll(nullptr, 0, kPauseMs);
    return false;
  }
  if (taken < 0) ways_[next.stream == Stream::out ? 0 : 1].failure = errno;
  written_ = taken < 0 ? next.text.size() : written_ + static_cast<std::size_t>(taken);
  if (written_ < next.text.size()) return true;
  queued_ -= std::exchange(written_, 0);
  queue_.pop_front();
  return true;
}

}  // namespace tutti::command
