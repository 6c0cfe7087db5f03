#include "output.h"

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

namespace tutti::command {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;        // lines are queued together up to this
constexpr std::string_view kEraseLine = "\r\x1b[K";  // ECMA-48 EL

// Pause for a reader that is ready but takes nothing: a terminal with too little room for a line's
// end, or a socket that others fill.
constexpr int kPauseMs = 10;

// Another opening of the terminal behind `stream`, so that processes that share the inherited one
// are not made to write without blocking. Empty where it cannot be opened.
FileDescriptor open_without_blocking(Stream stream) {
  const int fd = static_cast<int>(stream);
  int number = 0;
  if (ioctl(fd, TIOCGPTN, &number) == 0) return {};  // the master of one: opening makes a new pair
  return FileDescriptor(open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                             O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
}

bool is_socket(Stream stream) {
  struct stat info {};
  return fstat(static_cast<int>(stream), &info) == 0 && S_ISSOCK(info.st_mode);
}

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

// A terminal is ready for writing when it takes a single byte: a longer write would wait.
Output::Way Output::way_to(Stream stream, bool terminal) {
  if (terminal) return {.own = open_without_blocking(stream)};
  return {.own = {}, .is_socket = is_socket(stream)};
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
  if (failure(stream) != 0 || text.empty()) return;
  const bool to_front = file_.empty() && back_.empty() && front_bytes_ < kMaxInMemory;
  std::deque<Piece>& pieces = to_front ? front_ : back_;
  (to_front ? front_bytes_ : back_bytes_) += text.size();
  if (pieces.empty() || pieces.back().stream != stream ||
      pieces.back().text.size() + text.size() > kPieceBytes) {
    if (!to_front) spill();
    pieces.push_back({stream, {}});
  }
  pieces.back().text.append(text);
  if (!to_front && back_bytes_ >= kMaxInMemory) spill();  // lines may be that long
}

// Called when the last piece is whole.
void Output::spill() {
  while (!back_.empty() && !file_refuses_) {
    if (!file_.push(static_cast<int>(back_.front().stream), back_.front().text)) {
      file_refuses_ = true;
      say_refusal(errno);
      return;
    }
    back_bytes_ -= back_.front().text.size();
    back_.pop_front();
  }
}

// Prints the refusal once, because a slow reader fills the file repeatedly.
void Output::say_refusal(int error) {
  if (refusal_said_) return;
  refusal_said_ = true;
  const std::string note = fmt::format(
      "tutti run: cannot keep more of what nobody reads: {}; workers wait for the reader\n",
      std::strerror(error));
  back_bytes_ += note.size();
  back_.push_back({Stream::error, note});
}

void Output::refill() {
  if (!front_.empty()) return;
  while (front_bytes_ < kMaxInMemory) {
    const bool has_more = !file_.empty();
    auto entry = file_.pop();
    if (!entry && has_more)
      entry = {static_cast<int>(Stream::error),
               fmt::format("tutti run: some of the workers' output is lost: {}\n",
                           std::strerror(errno))};
    if (!entry) break;
    front_bytes_ += entry->text.size();
    front_.push_back({static_cast<Stream>(entry->kind), std::move(entry->text)});
  }
  if (!front_.empty()) return;
  std::swap(front_, back_);
  std::swap(front_bytes_, back_bytes_);
  file_refuses_ = false;
}

int Output::next_descriptor() const {
  return front_.empty() ? -1 : descriptor(front_.front().stream);
}

int Output::descriptor(Stream stream) const {
  const FileDescriptor& own = way(stream).own;
  return own ? own.get() : static_cast<int>(stream);
}

// A socket that is ready may take a part and wait with the rest. The flag applies to this call
// alone, so that processes that share the socket are not made to write without blocking.
ssize_t Output::write_piece(Stream stream, std::string_view text) const {
  const int to = descriptor(stream);
  if (way(stream).is_socket) return send(to, text.data(), text.size(), MSG_DONTWAIT);
  return write(to, text.data(), text.size());
}

bool Output::write_some() {
  if (front_.empty()) return false;
  const Piece& front = front_.front();
  // A pipe that is ready takes this much without blocking (pipe(7)).
  const ssize_t taken =
      write_piece(front.stream, std::string_view(front.text).substr(written_, PIPE_BUF));
  if (taken < 0) {
    if (errno == EAGAIN) poll(nullptr, 0, kPauseMs);
    if (errno == EINTR || errno == EAGAIN) return false;
    failure(front.stream) = errno;
    drop_front();
    return true;
  }
  written_ += static_cast<std::size_t>(taken);
  if (written_ == front.text.size()) drop_front();
  return true;
}

void Output::drop_front() {
  front_bytes_ -= front_.front().text.size();
  front_.pop_front();
  written_ = 0;
  refill();
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
