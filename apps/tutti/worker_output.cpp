#include "worker_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "rank_prefix.h"
#include "refusal.h"

namespace tutti::command {

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
                  fmt::format("--log: cannot create {}: {}", log_file, std::strerror(errno)));
}

void WorkerOutput::take(Stream stream, std::string_view bytes) {
  Part& from = part(stream);
  print(stream, from.assembler.feed(bytes));
  if (!from.may_show || !from.assembler.rewrites()) return;
  output_->show(stream, from.prefix, from.assembler.unfinished());
  from.shown = true;
}

void WorkerOutput::finish(Stream stream) { print(stream, part(stream).assembler.finish()); }

void WorkerOutput::print(Stream stream, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  Part& from = part(stream);
  if (from.shown) {
    output_->hide();
    from.shown = false;
  }
  std::string logged;
  for (const std::string& line : lines) {
    output_->line(stream, from.prefix, line);
    logged.append(line).push_back('\n');
    last_lines_.push_back(line);
    if (last_lines_.size() > kRememberedLines) last_lines_.pop_front();
  }
  log(logged);
}

void WorkerOutput::start_again(std::string_view line) {
  for (Part& each : parts_) {
    each.assembler = {};
    each.shown = false;
  }
  last_lines_.clear();
  log(std::string(line) + '\n');
}

void WorkerOutput::log(std::string_view text) {
  while (log_ && !text.empty()) {
    const ssize_t written = write(log_.get(), text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written > 0 || (written < 0 && errno == EINTR)) continue;
    output_->line(Stream::error, "",
                  fmt::format("tutti run: cannot write {}: {}; it ends here", log_file_,
                              std::strerror(errno)));
    log_.reset();
  }
}

}  // namespace tutti::command
