#include "sync/plan/step_name.h"

#include <fmt/format.h>

#include <charconv>

namespace tutti {
namespace {

constexpr std::string_view kStep = "step ";
constexpr std::string_view kOf = " of \"";
constexpr std::string_view kEnd = "\"";

}  // namespace

std::string step_name(std::int64_t number, std::string_view trained) {
  return fmt::format("{}{}{}{}{}", kStep, number, kOf, trained, kEnd);
}

std::optional<StepName> step_name_of(std::string_view text) {
  if (!text.starts_with(kStep)) return std::nullopt;
  text.remove_prefix(kStep.size());
  StepName name;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), name.number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(kOf) || !text.ends_with(kEnd) || text.size() < kOf.size() + kEnd.size()) {
    return std::nullopt;
  }
  name.trained = text.substr(kOf.size(), text.size() - kOf.size() - kEnd.size());
  return name;
}

}  // namespace tutti
