#include "apps/tutti/run/worker_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/write_all.h"

namespace tutti::command {
namespace {

// As the C++ library writes an error of Tutti: the class, then on the next line the text.
constexpr std::string_view kUncaught = "terminate called after throwing an instance of 'tutti::";
constexpr std::size_t kBeforeName = kUncaught.size() - std::string_view("tutti::").size();
constexpr std::string_view kWhat = "  what():  ";

// "Exception raised from f at file.cpp:12 (most recent call first):"
// "frame #3: <unknown function> + 0x29d90 (0x7f… in /lib/libc.so.6)"
bool is_stack_frame(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (line.starts_with("Exception raised from "))
    return line.ends_with("(most recent call first):");
  return line.starts_with("frame #") && line.find("(0x") != std::string_view::npos;
}

/// What a terminal shows of a line with carriage returns.
std::string_view last_state(std::string_view line) {
  line = line.substr(0, line.find_last_not_of('\r') + 1);
  return line.substr(line.rfind('\r') + 1);
}

/// For terminals whose user has not set NO_COLOR (https://no-color.org) and that can show colours.
bool wants_colour(bool is_terminal) {
  const char* const refusal = std::getenv("NO_COLOR");
  const char* const kind = std::getenv("TERM");
  return is_terminal && !(refusal && *refusal) && !(kind && std::string_view(kind) == "dumb");
}

}  // namespace

std::string rank_prefix(int rank, int size, bool colour) {
  constexpr std::array kColours = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};  // ECMA-48 SGR
  const std::string plain = fmt::format("[{:>{}}]", rank, fmt::formatted_size("{}", size - 1));
  if (!colour) return plain + " ";
  return fmt::format("\x1b[{}m{}\x1b[0m ",
                     kColours[static_cast<std::size_t>(rank) % kColours.size()], plain);
}

std::string ranks_prefix(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", ascending[first])
                          : fmt::format("{}-{}", ascending[first], ascending[last]);
    first = last + 1;
  }
  return fmt::format("[{}] ", text);
}

WorkerOutput::WorkerOutput(Output& output, int rank, int size, const std::string& log_file)
    : output_(&output), log_file_(log_file) {
  for (const Stream stream : {Stream::out, Stream::error}) {
    const bool is_terminal = output.is_terminal(stream);
    part(stream).prefix = rank_prefix(rank, size, wants_colour(is_terminal));
    part(stream).shows_rewriting = rank == 0 && is_terminal;
  }
  if (log_file.empty()) return;
  log_ = FileDescriptor(open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log_)
    throw Refusal(kUsageStatus,
                  fmt::format("--log: cannot create {}: {}", log_file, error_text(errno)));
}

void WorkerOutput::take(Stream stream, std::string_view bytes) {
  Part& from = part(stream);
  for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos;) {
    from.rest += bytes.substr(0, end);
    print(stream, std::string(last_state(std::exchange(from.rest, {}))));
    bytes.remove_prefix(end + 1);
  }
  from.rest += bytes;
  if (from.rest.size() > kLongestLine)
    print(stream, std::string(last_state(std::exchange(from.rest, {}))));
  write_log();
  if (from.rest.find('\r') == std::string::npos) return;
  const std::string shown(last_state(from.rest));
  from.rest = fmt::format("\r{}{}", shown, from.rest.ends_with('\r') ? "\r" : "");
  if (from.shows_rewriting) output_->show(stream, from.prefix + shown);
}

void WorkerOutput::finish(Stream stream) {
  const std::string rest = std::exchange(part(stream).rest, {});
  if (const auto line = last_state(rest); !line.empty()) print(stream, std::string(line));
  write_log();
}

void WorkerOutput::print(Stream stream, std::string line) {
  if (takes_line_ && takes_line_(line)) return;
  if (log_) logged_.append(line).push_back('\n');
  const Part& from = part(stream);
  if (from.shows_rewriting) output_->show(stream, "");
  if (is_stack_frame(line)) {
    remembered_.any_frames = true;
    return;
  }
  remembered_.last_lines.push_back(line);
  if (remembered_.last_lines.size() > kRememberedLines) remembered_.last_lines.pop_front();
  const bool is_last_word =
      stream == Stream::error && !takes_line_ && (has_last_words() || line.starts_with(kUncaught));
  if (is_last_word) {
    remembered_.last_words.push_back(std::move(line));
  } else {
    output_->line(stream, from.prefix, line);
  }
}

std::vector<std::string> WorkerOutput::take_last_words() {
  std::vector<std::string> words = std::exchange(remembered_.last_words, {});
  if (words.size() < 2 || !words[1].starts_with(kWhat)) return words;
  const std::string name = words[0].substr(kBeforeName);
  words[1] = fmt::format("error ({}, not caught): {}", name.substr(0, name.find('\'')),
                         words[1].substr(kWhat.size()));
  words.erase(words.begin());
  return words;
}

Written WorkerOutput::written() const {
  const auto& [lines, last_words, any_frames] = remembered_;
  return {.last_lines = {lines.begin(), lines.end()},
          .frames = !any_frames ? ""
                    : log_      ? "stack frames: in " + log_file_
                                : "stack frames are left out: --log DIR keeps them"};
}

void WorkerOutput::start_again(std::string_view line) {
  for (Part& each : parts_) each.rest.clear();
  remembered_ = {};
  if (log_) logged_.append(line).push_back('\n');
  write_log();
}

void WorkerOutput::write_log() {
  const std::string lines = std::exchange(logged_, {});
  if (lines.empty() || write_all(log_.get(), lines)) return;
  output_->line(
      Stream::error, "",
      fmt::format("tutti run: cannot write {}: {}; it ends here", log_file_, error_text(errno)));
  log_.reset();
}

}  // namespace tutti::command
