#include "tutti/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace tutti {

Progress::Progress(std::int64_t done, std::int64_t total, const Options& options)
    : first_(done),
      total_(total),
      every_(1),
      quiet_(options.quiet),
      to_(options.to != nullptr ? options.to : stdout),
      terminal_(isatty(fileno(to_)) != 0) {
  const auto lines = std::max<std::int64_t>(options.lines, 1);
  if (!terminal_) every_ = std::max<std::int64_t>(1, (total - done + lines - 1) / lines);
}

void Progress::show(std::int64_t step, std::string_view figures) {
  if (quiet_ || (step % every_ != 0 && step != total_)) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double rate = static_cast<double>(step - first_) / std::max(seconds, 1e-9);
  const auto line = fmt::format("step {}/{}  {}  {:.1f} steps/s  {:.0f} s left", step, total_,
                                figures, rate, static_cast<double>(total_ - step) / rate);
  // ESC [ K erases what a longer line has left behind.
  const char* const end = terminal_ && step != total_ ? "\033[K" : "\n";
  std::fprintf(to_, "%s%s%s", terminal_ ? "\r" : "", line.c_str(), end);
  std::fflush(to_);
}

}  // namespace tutti
