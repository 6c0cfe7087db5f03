#include "run/data/turns.h"

#include <algorithm>

namespace tutti {

void Turns::note(std::uint64_t model) {
  if (latest_.size() == kMost) latest_.erase(latest_.begin());
  latest_.push_back(model);
}

std::size_t Turns::round() const {
  for (std::size_t turns = 1; turns <= latest_.size() / 2; ++turns) {
    const auto shifted = latest_.end() - static_cast<std::ptrdiff_t>(turns);
    if (!std::equal(latest_.begin(), shifted, latest_.begin() + static_cast<std::ptrdiff_t>(turns)))
      continue;
    return turns > 1 ? turns : 0;  // one model alone takes no turns
  }
  return 0;
}

std::optional<std::uint64_t> Turns::next() const {
  const auto turns = round();
  if (turns == 0) return {};
  return latest_[latest_.size() - turns];
}

}  // namespace tutti
