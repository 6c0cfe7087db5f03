#pragma once

// Options as keys and values: what workers compare, and what is printed at the start.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// ", key value, key value …"
std::string text_of(const Settings& settings);

/// InvalidArgument unless the number of the first step is 1 or more.
void require_first_step(std::int64_t first_step);
/// InvalidArgument for a deadline that is not positive.
void require_deadline(const std::optional<std::chrono::milliseconds>& deadline);

}  // namespace tutti
