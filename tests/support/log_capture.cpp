#include "support/log_capture.h"

#include <algorithm>
#include <mutex>

#include <spdlog/sinks/base_sink.h>

#include "base/log.h"

namespace tutti::test {

class LogCapture::Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    lines_.push_back(std::string(level.data(), level.size()) + ": " +
                     std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  std::vector<std::string> lines_;
};

LogCapture::LogCapture() : sink_(std::make_shared<Sink>()) { log().sinks().push_back(sink_); }

LogCapture::~LogCapture() {
  std::erase(log().sinks(), std::shared_ptr<spdlog::sinks::sink>(sink_));
}

std::vector<std::string> LogCapture::lines() const { return sink_->lines(); }

int LogCapture::count(const std::string& text) const {
  const auto all = lines();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const std::string& line) {
    return line.find(text) != std::string::npos;
  }));
}

}  // namespace tutti::test
