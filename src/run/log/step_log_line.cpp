#include "run/log/step_log_line.h"

#include <limits>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "run/files/strict_json.h"
#include "run/log/line_reader.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using nlohmann::json;

/// Gathered metrics are long, but no value of theirs is kept.
constexpr JsonLimits kLimits = {.array = kMaxLineBytes};

class Line {
 public:
  explicit Line(const std::string& where) : where_(where) {}

  void take(std::span<const std::string> path, const json& value) {
    const std::string& key = path.front();
    if (key == "facts" || key == "digests") return take_named(path, value);
    if (path.size() != 1) return;
    if (key == "format") format_ = text(key, value);
    if (key == "kind") kind_ = text(key, value);
    if (key == "version") version_ = number(key, value);
    if (key == "step") step_ = number(key, value);
    if (key == "steps") steps_ = number(key, value);
  }

  StepLogLine result() {
    if (format_) return header();
    if (!kind_) fail("has neither a \"kind\" nor a \"format\"");
    if (!step_) fail("has no \"step\"");
    line_.step = *step_;
    if (*kind_ == "metrics") return std::move(line_);
    if (*kind_ != "digests") fail(fmt::format("is of kind {}, which is not known", shown(*kind_)));
    if (line_.digests.empty()) fail("has no digests");
    line_.kind = StepLogLine::Kind::digests;
    return std::move(line_);
  }

 private:
  StepLogLine header() {
    if (*format_ != kStepLogFormat)
      fail(fmt::format("is of format {}, not \"{}\"", shown(*format_), kStepLogFormat));
    if (!version_) fail("has no \"version\"");
    if (*version_ != kStepLogVersion)
      throw Unsupported(fmt::format("{} has version {}; this build reads version {}", where_,
                                    *version_, kStepLogVersion));
    if (!steps_) fail("has no \"steps\"");
    line_.kind = StepLogLine::Kind::header;
    line_.step = *steps_;
    return std::move(line_);
  }

  void take_named(std::span<const std::string> path, const json& value) {
    if (path.size() != 2 || path[1].empty() || !value.is_string())
      fail(fmt::format("has {} that are not texts by name", path.front()));
    if (path.front() == "facts")
      line_.facts[path[1]] = value.get<std::string>();
    else
      line_.digests.emplace_back(path[1], value.get<std::string>());
  }

  std::string text(const std::string& key, const json& value) const {
    if (!value.is_string()) fail(fmt::format("has a \"{}\" that is no text", key));
    return value.get<std::string>();
  }
  std::int64_t number(const std::string& key, const json& value) const {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost)
      fail(fmt::format("has a \"{}\" that counts nothing: {}", key, shown(value.dump())));
    return value.get<std::int64_t>();
  }
  [[noreturn]] void fail(const std::string& what) const { throw Corrupt(where_ + " " + what); }

  const std::string& where_;
  std::optional<std::string> format_;
  std::optional<std::string> kind_;
  std::optional<std::int64_t> version_;
  std::optional<std::int64_t> step_;
  std::optional<std::int64_t> steps_;
  StepLogLine line_;
};

}  // namespace

StepLogLine parse_step_log_line(std::string_view text, const std::string& where) {
  Line line(where);
  each_value(text, where, kLimits,
             [&](std::span<const std::string> path, const json& value) { line.take(path, value); });
  return line.result();
}

}  // namespace tutti
