#include "base/log.h"

#include <string_view>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "tutti/error.h"

namespace tutti {
namespace {

/// "tutti [rank 2] warning: text"; information carries no level.
class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(std::string speaker) : speaker_(std::move(speaker)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    append(to, speaker_);
    switch (message.level) {
      case spdlog::level::trace:
      case spdlog::level::debug:
        append(to, " debug: ");
        break;
      case spdlog::level::warn:
        append(to, " warning: ");
        break;
      case spdlog::level::err:
      case spdlog::level::critical:
        append(to, " error: ");
        break;
      default:
        append(to, ": ");
    }
    append(to, std::string_view(message.payload.data(), message.payload.size()));
    append(to, "\n");
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(speaker_);
  }

 private:
  static void append(spdlog::memory_buf_t& to, std::string_view text) {
    to.append(text.data(), text.data() + text.size());
  }
  std::string speaker_;
};

}  // namespace

spdlog::logger& log() {
  // Never destroyed: workers may speak while the process ends.
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("tutti", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_formatter(std::make_unique<LineFormatter>("tutti"));
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *logger;
}

void set_log_level(const std::string& level) {
  if (level == "debug") return log().set_level(spdlog::level::debug);
  if (level == "info") return log().set_level(spdlog::level::info);
  if (level == "warn") return log().set_level(spdlog::level::warn);
  if (level == "error") return log().set_level(spdlog::level::err);
  if (level == "off") return log().set_level(spdlog::level::off);
  throw InvalidArgument(
      fmt::format("TUTTI_LOG is \"{}\": must be debug, info, warn, error or off", level));
}

void set_log_rank(int rank, int size) {
  log().set_formatter(std::make_unique<LineFormatter>(
      size == 1 ? std::string("tutti") : fmt::format("tutti [rank {}]", rank)));
}

}  // namespace tutti
