#include "sync/plan/fragments.h"

#include <algorithm>
#include <numeric>

namespace tutti {
namespace {

/// Groups of at most `limit` bytes, each as large as it can be unless later ones would have
/// nothing. More than `fragments` where the limit is too low.
std::vector<std::size_t> groups_within(std::span<const std::size_t> bytes, std::size_t fragments,
                                       std::size_t limit) {
  std::vector<std::size_t> counts = {0};
  std::size_t filled = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool is_needed = counts.size() + (bytes.size() - i) == fragments;
    if (counts.back() > 0 && (is_needed || filled + bytes[i] > limit)) {
      counts.push_back(0);
      filled = 0;
    }
    ++counts.back();
    filled += bytes[i];
  }
  return counts;
}

}  // namespace

std::vector<std::size_t> fragment_counts(std::span<const std::size_t> bytes,
                                         std::size_t fragments) {
  auto least = *std::ranges::max_element(bytes);
  auto most = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  while (least < most) {
    const auto middle = least + (most - least) / 2;
    if (groups_within(bytes, fragments, middle).size() > fragments) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return groups_within(bytes, fragments, least);
}

}  // namespace tutti
