#include "sync/plan/step_name.h"

#include <fmt/format.h>

#include "base/number.h"

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
  const auto number = take_number<std::int64_t>(text);
  if (!number) return std::nullopt;
  if (!text.starts_with(kOf) || !text.ends_with(kEnd) || text.size() < kOf.size() + kEnd.size()) {
    return std::nullopt;
  }
  return StepName{*number,
                  std::string(text.substr(kOf.size(), text.size() - kOf.size() - kEnd.size()))};
}

}  // namespace tutti
