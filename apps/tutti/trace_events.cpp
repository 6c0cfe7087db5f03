#include "trace_events.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "tutti/error.h"

namespace tutti::command {
namespace {

using nlohmann::json;

constexpr std::string_view kEvents = "traceEvents";
constexpr double kNanosecondsPerUs = 1000;
/// Its nanoseconds are an integer of 64 bits.
constexpr double kMostUs = 4e15;

enum class Field { none, name, phase, process, thread, start, duration };

constexpr std::array<std::pair<std::string_view, Field>, 6> kFields = {{
    {"name", Field::name},
    {"ph", Field::phase},
    {"pid", Field::process},
    {"tid", Field::thread},
    {"ts", Field::start},
    {"dur", Field::duration},
}};

/// What an event has said of itself so far.
struct Draft {
  std::optional<std::string> name;
  std::string phase;
  std::optional<double> process, thread, start, duration;
};

/// Follows the parser, and keeps one event at most. Events are the objects of the outermost array,
/// or of the outermost object's "traceEvents".
class TraceReader : public nlohmann::json_sax<json> {
 public:
  TraceReader(std::string file, std::FILE* stream,
              const std::function<void(const TraceEvent&)>& take)
      : file_(std::move(file)), stream_(stream), take_(take) {}

  bool found_events() const { return found_events_; }

  bool start_object(std::size_t) override {
    ++depth_;
    if (is_event()) {
      draft_ = {};
      field_ = Field::none;
    }
    return true;
  }
  bool end_object() override {
    if (is_event()) finish_event();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    const bool is_outermost = depth_ == 1;
    const bool is_member = depth_ == 2 && events_depth_ == 0 && last_key_ == kEvents;
    if (is_outermost || is_member) {
      events_depth_ = depth_;
      found_events_ = true;
    }
    return true;
  }
  bool end_array() override {
    if (depth_ == events_depth_) events_depth_ = 0;
    --depth_;
    return true;
  }
  bool key(std::string& key) override {
    last_key_ = key;
    if (!is_event()) return true;
    field_ = Field::none;
    for (const auto& [name, field] : kFields) {
      if (key == name) field_ = field;
    }
    return true;
  }
  bool string(std::string& text) override {
    if (!is_event()) return true;
    if (field_ == Field::name) draft_.name = std::move(text);
    if (field_ == Field::phase) draft_.phase = std::move(text);
    return true;
  }
  bool number_integer(std::int64_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) override { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return number(value); }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(std::size_t byte, const std::string&, const json::exception&) override {
    if (std::ferror(stream_) != 0) fail_to_read(errno);
    throw Corrupt(fmt::format("{} is not JSON: error at byte {}", file_, byte));
  }

  [[noreturn]] void fail_to_read(int code) const {
    throw IoError(
        code, fmt::format("{} cannot be read: {}", file_, std::generic_category().message(code)));
  }

 private:
  bool is_event() const { return events_depth_ > 0 && depth_ == events_depth_ + 1; }

  bool number(double value) {
    if (!is_event()) return true;
    if (field_ == Field::process) draft_.process = value;
    if (field_ == Field::thread) draft_.thread = value;
    if (field_ == Field::start) draft_.start = value;
    if (field_ == Field::duration) draft_.duration = value;
    return true;
  }

  double required(const std::optional<double>& value, const char* key) const {
    const double least = std::string_view(key) == "dur" ? 0 : -kMostUs;
    if (value && *value >= least && *value <= kMostUs) return *value;
    throw Corrupt(fmt::format("{}: event {} has {} \"{}\"", file_, number_,
                              value ? "an impossible" : "no", key));
  }

  void finish_event() {
    ++number_;
    if (draft_.phase != "X") return;
    if (!draft_.name) throw Corrupt(fmt::format("{}: event {} has no \"name\"", file_, number_));
    TraceEvent event;
    event.name = std::move(*draft_.name);
    event.process = static_cast<std::int64_t>(required(draft_.process, "pid"));
    event.thread = static_cast<std::int64_t>(required(draft_.thread.value_or(0), "tid"));
    event.start_ns = std::llround(required(draft_.start, "ts") * kNanosecondsPerUs);
    event.end_ns =
        event.start_ns + std::llround(required(draft_.duration, "dur") * kNanosecondsPerUs);
    take_(event);
  }

  std::string file_;
  std::FILE* stream_;
  const std::function<void(const TraceEvent&)>& take_;
  int depth_ = 0;
  int events_depth_ = 0;  ///< of the array of events while it is open; else 0
  bool found_events_ = false;
  std::string last_key_;
  Field field_ = Field::none;
  Draft draft_;
  std::int64_t number_ = 0;
};

struct CloseFile {
  void operator()(std::FILE* stream) const { std::fclose(stream); }
};

}  // namespace

void each_trace_event(const std::string& file, const std::function<void(const TraceEvent&)>& take) {
  const std::unique_ptr<std::FILE, CloseFile> stream(std::fopen(file.c_str(), "rbe"));
  TraceReader reader(file, stream.get(), take);
  if (!stream) reader.fail_to_read(errno);
  json::sax_parse(stream.get(), &reader);
  if (!reader.found_events()) {
    throw Corrupt(fmt::format("{} is no timeline of tutti run --profile: it has no list \"{}\"",
                              file, kEvents));
  }
}

}  // namespace tutti::command
