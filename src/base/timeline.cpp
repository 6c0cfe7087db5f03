#include "base/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace tutti {
namespace {

constexpr std::size_t kPending = std::size_t{64} << 10;

double microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

}  // namespace

Timeline::Timeline(const std::string& file, int rank, int size)
    : file_(size > 1 ? fmt::format("{}.rank{}", file, rank) : file),
      rank_(rank),
      out_(::open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (!out_) say_failure();
  pending_ = fmt::format(
      R"({{"traceEvents":[{{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"worker {0}"}}}})",
      rank_);
}

Timeline::~Timeline() {
  if (process_.is_own()) finish();  // a child made by fork has a copy of what is pending
}

void Timeline::finish() {
  const std::lock_guard lock(mutex_);
  if (!out_) return;
  pending_ += "]}";
  flush();
  if (!out_.close()) say_failure();
}

void Timeline::add(std::string_view name, Clock::time_point begin, Clock::time_point end) {
  if (!process_.is_own()) return;
  const std::lock_guard lock(mutex_);
  if (!out_) return;
  pending_ += fmt::format(
      ",\n{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
      nlohmann::json(name).dump(), rank_, ::gettid(), microseconds(begin.time_since_epoch()),
      microseconds(end - begin));
  if (pending_.size() >= kPending) flush();
}

void Timeline::say_failure() const { log().error("cannot write the timeline {}", file_); }

void Timeline::flush() {
  for (std::size_t sent = 0; out_ && sent < pending_.size();) {
    const auto n = ::write(out_.get(), pending_.data() + sent, pending_.size() - sent);
    if (n <= 0) {
      say_failure();
      out_.reset();
    }
    sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  }
  pending_.clear();
}

}  // namespace tutti
