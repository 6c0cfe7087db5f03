#include "torch/model/settings.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

std::string text_of(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += ", " + key + ' ' + value;
  return text;
}

void require_first_step(std::int64_t first_step) {
  if (first_step >= 1) return;
  throw InvalidArgument(fmt::format("first_step {}: steps count from 1", first_step));
}

void require_deadline(const std::optional<std::chrono::milliseconds>& deadline) {
  if (!deadline || deadline->count() > 0) return;
  throw InvalidArgument("the deadline must be positive");
}

}  // namespace tutti
