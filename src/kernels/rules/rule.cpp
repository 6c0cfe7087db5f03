#include "kernels/rules/rule.h"

#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace tutti {

PreparedUpdate UpdateRule::at(const UpdateMoment& moment) const {
  TUTTI_CHECK(moment.step >= 1, "update {} of a parameter", moment.step);
  TUTTI_CHECK(states.size() <= kMaxStates, "{} with {} tensors of state", name, states.size());
  return {states.size(), kernel_of(numbers(moment))};
}

std::string first_broken(std::initializer_list<Condition> conditions) {
  for (const auto& [holds, text] : conditions) {
    if (!holds) return text;
  }
  return "";
}

Condition finite_and_not_negative(std::string_view name, double value) {
  return {std::isfinite(value) && value >= 0,
          fmt::format("{} must be finite and not negative", name)};
}

bool is_in_unit_interval(double value) { return value >= 0 && value < 1; }

std::string_view text_of(Decay decay) {
  switch (decay) {
    case Decay::l2:
      return "l2";
    case Decay::times_rate:
      return "times rate";
    case Decay::times_schedule:
      return "times schedule";
  }
  return "?";
}

double shrink_of(Decay decay, double lr, double weight_decay, double rate_factor) {
  switch (decay) {
    case Decay::l2:
      return 0;
    case Decay::times_rate:
      return lr * weight_decay * rate_factor;
    case Decay::times_schedule:
      return weight_decay * rate_factor;
  }
  return 0;
}

}  // namespace tutti
