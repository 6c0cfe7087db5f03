#include "torch/model/overlap.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace tutti {
namespace {

/// How many bytes one step along a dimension is, and how many steps there are.
struct Steps {
  std::int64_t bytes;
  std::int64_t count;
};

/// Whether some of the steps, the longest first, make `distance`; true where too many were tried.
bool reach(std::span<const Steps> steps, std::int64_t distance, int& tries) {
  if (distance == 0 || --tries < 0) return true;
  if (steps.empty()) return false;
  const auto shorter = steps.subspan(1);
  std::int64_t farthest = 0;
  for (const auto& step : shorter) farthest += step.bytes * step.count;
  const auto& longest = steps.front();
  for (auto n = std::min(longest.count, distance / longest.bytes);
       n >= 0 && distance - n * longest.bytes <= farthest; --n) {
    if (reach(shorter, distance - n * longest.bytes, tries)) return true;
  }
  return false;
}

}  // namespace

bool overlap(const torch::Tensor& one, const torch::Tensor& other) {
  if (!one.has_storage() || !other.has_storage() || !one.is_alias_of(other) || one.numel() == 0 ||
      other.numel() == 0)
    return false;
  // Bytes are the same where steps forward from the beginning of the one, and steps back from the
  // end of the other, make the distance between the two.
  std::map<std::int64_t, std::int64_t, std::greater<>> counts;  // of steps of so many bytes
  std::int64_t distance = static_cast<const char*>(other.const_data_ptr()) -
                          static_cast<const char*>(one.const_data_ptr());
  for (const auto* const tensor : {&one, &other}) {
    const auto add = [&](std::int64_t bytes, std::int64_t count) {
      if (bytes == 0 || count == 0) return;
      counts[bytes] += count;
      if (tensor == &other) distance += bytes * count;
    };
    const auto size = tensor->element_size();
    add(1, size - 1);
    for (std::int64_t d = 0; d < tensor->dim(); ++d) {
      add(tensor->stride(d) * size, tensor->size(d) - 1);
    }
  }
  std::vector<Steps> steps;
  for (const auto& [bytes, count] : counts) steps.push_back({bytes, count});
  int tries = 10'000;
  return distance >= 0 && reach(steps, distance, tries);
}

}  // namespace tutti
