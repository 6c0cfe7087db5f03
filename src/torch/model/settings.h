#pragma once

// Options as keys and values: what workers compare, and what is printed at the start.

#include <string>
#include <utility>
#include <vector>

namespace tutti {

using Settings = std::vector<std::pair<std::string, std::string>>;

}  // namespace tutti
