#include "run/pipeline/stage_action_text.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/number.h"

namespace tutti {
namespace {

constexpr std::string_view kStage = " of stage ";
constexpr std::string_view kMicroBatch = ", micro-batch ";
constexpr std::array kWorks = {StageWork::forward, StageWork::backward, StageWork::backward_input,
                               StageWork::backward_weight};

std::string_view name_of(StageWork work) {
  switch (work) {
    case StageWork::forward:
      return "forward";
    case StageWork::backward:
      return "backward";
    case StageWork::backward_input:
      return "backward (input)";
    case StageWork::backward_weight:
      return "backward (weights)";
  }
  return "unknown work";
}

/// True if `text` begins with `words`, which are then taken away.
bool take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

/// The same for a number, as text_of() writes it.
bool take(std::string_view& text, int& number) {
  const auto before = text;
  const auto found = take_number<int>(text);
  if (!found || before[0] == '-' || (before[0] == '0' && before.size() - text.size() > 1)) {
    return false;
  }
  number = *found;
  return true;
}

}  // namespace

std::string text_of(const StageAction& action) {
  return fmt::format("{}{}{}{}{}", name_of(action.work), kStage, action.stage, kMicroBatch,
                     action.micro_batch);
}

std::optional<StageAction> stage_action_of(std::string_view text) {
  for (const auto work : kWorks) {
    auto rest = text;
    StageAction action{.work = work};
    if (take(rest, name_of(work)) && take(rest, kStage) && take(rest, action.stage) &&
        take(rest, kMicroBatch) && take(rest, action.micro_batch) && rest.empty()) {
      return action;
    }
  }
  return std::nullopt;
}

}  // namespace tutti
