#include "apps/tutti/run/worker_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "apps/tutti/text/rank_prefix.h"
#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/write_all.h"
#include "base/file_descriptor.h"

namespace tutti::command {

namespace {

// As the C++ library writes it: the class, then on the next line the text.
constexpr std::string_view kUncaught = "terminate called after throwing an instance of '";
constexpr std::string_view kUncaughtOfTutti =
    "terminate called after throwing an instance of 'tutti::";
constexpr std::string_view kWhat = "  what():  ";

}  // namespace

// "Exception raised from f at file.cpp:12 (most recent call first):"
// "frame #3: <unknown function> + 0x29d90 (0x7f… in /lib/libc.so.6)"
bool is_stack_frame(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (line.starts_with("Exception raised from "))
    return line.ends_with("(most recent call first):");
  constexpr std::string_view kFrame = "frame #";
  if (!line.starts_with(kFrame)) return false;
  line.remove_prefix(kFrame.size());
  const std::size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  return digits > 0 && line.substr(digits).starts_with(": ") &&
         line.find("(0x") != std::string_view::npos;
}

WorkerOutput::WorkerOutput(Output& output, const Terminals& terminals, int rank, int size,
                           const std::string& log_file)
    : output_(&output), log_file_(log_file) {
  for (const Stream stream : {Stream::out, Stream::error}) {
    const bool terminal = terminals.has(stream);
    const bool colour = wants_colour(terminal, std::getenv("NO_COLOR"), std::getenv("TERM"));
    part(stream).prefix = rank_prefix(rank, size, colour);
    part(stream).may_show = rank == 0 && terminal;
  }
  if (log_file.empty()) return;
  log_ = FileDescriptor(open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log_)
    throw Refusal(kUsageStatus,
                  fmt::format("--log: cannot create {}: {}", log_file, error_text(errno)));
}

WorkerOutput::WorkerOutput(Output& output, std::function<bool(const std::string&)> takes_line)
    : output_(&output), takes_line_(std::move(takes_line)) {}

void WorkerOutput::take(Stream stream, std::string_view bytes) {
  Part& from = part(stream);
  print(stream, from.assembler.feed(bytes));
  if (from.may_show && from.assembler.rewrites())
    output_->show(stream, from.prefix, from.assembler.unfinished());
}

void WorkerOutput::finish(Stream stream) {
  print(stream, part(stream).assembler.finish());
  if (part(stream).may_show) output_->hide(stream);
}

void WorkerOutput::print(Stream stream, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  const Part& from = part(stream);
  if (from.may_show) output_->hide(stream);
  std::string logged;
  for (const std::string& line : lines) {
    if (takes_line_ && takes_line_(line)) continue;
    logged.append(line).push_back('\n');
    if (!takes_line_ && is_stack_frame(line)) {
      remembered_.any_frames = true;
      continue;
    }
    remembered_.last_lines.push_back(line);
    if (remembered_.last_lines.size() > kRememberedLines) remembered_.last_lines.pop_front();
    if (is_last_word(stream, line)) {
      remembered_.last_words.push_back(line);
    } else {
      output_->line(stream, from.prefix, line);
    }
  }
  log(logged);
}

bool WorkerOutput::is_last_word(Stream stream, std::string_view line) const {
  if (stream != Stream::error || takes_line_) return false;
  return has_last_words() || line.starts_with(kUncaughtOfTutti);
}

std::vector<std::string> WorkerOutput::take_last_words() {
  std::vector<std::string> words = std::exchange(remembered_.last_words, {});
  if (words.size() < 2 || !words[1].starts_with(kWhat)) return words;
  const std::size_t name = kUncaught.size();
  const std::size_t end = words[0].find('\'', name);
  if (end == std::string::npos) return words;
  words[1] = fmt::format("error ({}, not caught): {}", words[0].substr(name, end - name),
                         words[1].substr(kWhat.size()));
  words.erase(words.begin());
  return words;
}

Written WorkerOutput::written() const {
  Written written{.last_lines = {remembered_.last_lines.begin(), remembered_.last_lines.end()},
                  .frames = {}};
  if (remembered_.any_frames)
    written.frames =
        log_ ? "stack frames: in " + log_file_ : "stack frames are left out: --log DIR keeps them";
  return written;
}

void WorkerOutput::start_again(std::string_view line) {
  for (Part& each : parts_) each.assembler = {};
  remembered_ = {};
  log(std::string(line) + '\n');
}

void WorkerOutput::log(std::string_view text) {
  if (!log_ || write_all(log_.get(), text)) return;
  output_->line(
      Stream::error, "",
      fmt::format("tutti run: cannot write {}: {}; it ends here", log_file_, error_text(errno)));
  log_.reset();
}

}  // namespace tutti::command
