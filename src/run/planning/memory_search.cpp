#include "run/planning/memory_search.h"

#include <algorithm>
#include <array>

namespace tutti {
namespace {

/// So many classes of kept bytes are told apart; of each class the quickest plan is followed.
constexpr std::uint64_t kClasses = 512;

/// A plan of the first layers.
struct Beginning {
  std::uint64_t kept = 0;
  double added_ms = 0;
  std::uint64_t peak = 0;
  MemorySegment last;
  bool was_plain = false;  ///< the layer before `last`
  std::size_t before = 0;  ///< among the beginnings that end where `last` begins
};

bool is_better(const Beginning& one, const Beginning& other) {
  if (one.added_ms != other.added_ms) return one.added_ms < other.added_ms;
  return one.peak < other.peak;
}

/// Leaves those that no other one surpasses, by the bytes that they keep.
void prune(std::vector<Beginning>& all, std::uint64_t budget) {
  std::ranges::sort(all, [](const Beginning& one, const Beginning& other) {
    return one.kept != other.kept ? one.kept < other.kept : is_better(one, other);
  });
  const auto grain = std::max<std::uint64_t>(1, budget / kClasses);
  std::vector<Beginning> left;
  for (const auto& one : all) {
    if (!left.empty() && !is_better(one, left.back())) continue;
    const bool same_class = !left.empty() && left.back().kept / grain == one.kept / grain;
    // The first of a class stays: what is dearer in bytes alone may not fit in the end.
    if (same_class && left.size() > 1 && left[left.size() - 2].kept / grain == one.kept / grain) {
      left.back() = one;
    } else {
      left.push_back(one);
    }
  }
  all = std::move(left);
}

}  // namespace

SegmentCost cost_of(std::span<const LayerMemory> layers, const MemorySegment& segment,
                    bool before_is_plain) {
  const auto first = static_cast<std::size_t>(segment.first);
  const auto last = static_cast<std::size_t>(segment.last);
  SegmentCost cost;
  const auto input = first > 0 ? layers[first - 1].result : 0;
  const bool is_kept = segment.again || layers[first].keeps_input ||
                       (before_is_plain && first > 0 && layers[first - 1].keeps_result);
  if (is_kept) cost.input = input;
  // An input that nobody keeps is there in forward all the same.
  const auto passing = is_kept ? 0 : input;
  // In backward the program has the last result still.
  const auto outcome = segment.again || last < layers.size() ? layers.back().result : 0;
  if (!segment.again) {
    const auto& layer = layers[first];
    cost.kept = layer.inside;
    // The result, as far as it is still there, and its gradient.
    const auto results = layer.keeps_result || last == layers.size() ? 2 : 1;
    cost.peak =
        std::max(passing + layer.forward_peak, outcome + layer.inside + results * layer.result +
                                                   layer.backward_peak + layer.largest_gradient);
    return cost;
  }
  // Forward: the layers' insides, and their results between them.
  const auto is_held = [&](std::size_t i) {
    return i + 1 == last || layers[i].keeps_result || layers[i + 1].keeps_input;
  };
  std::uint64_t inside = 0;
  for (auto i = first; i < last; ++i) {
    cost.peak = std::max(cost.peak, inside + layers[i].forward_peak);
    inside += layers[i].inside + (is_held(i) ? layers[i].result : 0);
  }
  // Again, beside the gradient of the segment's result, which stays to the end as the result does.
  const auto given = layers[last - 1].result;
  cost.peak += given + outcome;
  std::uint64_t gradients = 0;
  for (auto i = last; i-- > first;) {
    const bool is_inner = i + 1 != last;
    // An inner result goes with the layer behind it, unless its own layer keeps it.
    if (is_inner && is_held(i) && !layers[i].keeps_result) inside -= layers[i].result;
    gradients += layers[i].gradients;
    cost.peak = std::max(cost.peak, outcome + inside + given + (is_inner ? layers[i].result : 0) +
                                        layers[i].backward_peak + gradients);
    inside -= layers[i].inside;
    if (is_inner && layers[i].keeps_result) inside -= layers[i].result;
  }
  return cost;
}

MemorySearch::MemorySearch(std::span<const LayerMemory> layers) : layers_(layers) {
  for (std::size_t first = 0; first < layers.size(); ++first) {
    const auto begin = static_cast<std::int64_t>(first);
    plain_.push_back({{cost_of(layers, {begin, begin + 1, false}, false),
                       cost_of(layers, {begin, begin + 1, false}, true)},
                      0});
    again_.emplace_back();
    double ms = 0;
    for (auto last = first + 1; last <= layers.size(); ++last) {
      ms += layers[last - 1].forward_ms;
      const MemorySegment segment{begin, static_cast<std::int64_t>(last), true};
      again_.back().push_back(
          {{cost_of(layers, segment, false), cost_of(layers, segment, true)}, ms});
    }
  }
}

std::optional<std::vector<MemorySegment>> MemorySearch::best(std::uint64_t budget) const {
  const auto n = layers_.size();
  if (n == 0) return std::vector<MemorySegment>();
  // By how many layers they have, and by whether the last one runs plainly.
  std::vector<std::array<std::vector<Beginning>, 2>> beginnings(n + 1);
  beginnings[0][0].push_back({});
  const auto extend = [&](std::size_t at, bool was_plain, std::size_t which, const Cost& cost,
                          MemorySegment segment) {
    const auto& from = beginnings[at][was_plain ? 1 : 0][which];
    const auto& own = cost.after[was_plain ? 1 : 0];
    const auto peak = from.kept + own.input + own.peak;
    if (peak > budget) return;
    beginnings[static_cast<std::size_t>(segment.last)][segment.again ? 0 : 1].push_back(
        {.kept = from.kept + own.input + own.kept,
         .added_ms = from.added_ms + cost.added_ms,
         .peak = std::max(from.peak, peak),
         .last = segment,
         .was_plain = was_plain,
         .before = which});
  };
  for (std::size_t at = 0; at < n; ++at) {
    for (const bool was_plain : {false, true}) {
      auto& all = beginnings[at][was_plain ? 1 : 0];
      prune(all, budget);
      const auto begin = static_cast<std::int64_t>(at);
      for (std::size_t which = 0; which < all.size(); ++which) {
        extend(at, was_plain, which, plain_[at], {begin, begin + 1, false});
        for (auto last = at + 1; last <= n; ++last) {
          extend(at, was_plain, which, cost(at, last),
                 {begin, static_cast<std::int64_t>(last), true});
        }
      }
    }
  }
  const Beginning* best = nullptr;
  for (const auto& all : beginnings[n]) {
    for (const auto& one : all) {
      if (best == nullptr || is_better(one, *best)) best = &one;
    }
  }
  if (best == nullptr) return {};
  std::vector<MemorySegment> segments;
  for (const auto* one = best; one->last.last > 0;) {
    const bool joins = !segments.empty() && !segments.back().again && !one->last.again;
    if (joins) {
      segments.back().first = one->last.first;
    } else {
      segments.push_back(one->last);
    }
    one =
        &beginnings[static_cast<std::size_t>(one->last.first)][one->was_plain ? 1 : 0][one->before];
  }
  std::ranges::reverse(segments);
  return segments;
}

std::uint64_t MemorySearch::plain_peak() const {
  if (layers_.empty()) return 0;
  const MemorySegment all[] = {{0, std::ssize(layers_), false}};
  return peak_of(layers_, all);
}

std::uint64_t MemorySearch::least_peak() const {
  std::uint64_t low = 0;
  auto high = plain_peak();
  if (!layers_.empty()) {
    const MemorySegment all[] = {{0, std::ssize(layers_), true}};
    high = std::min(high, peak_of(layers_, all));
  }
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    const auto found = best(middle);
    if (found) {
      high = std::min(middle, peak_of(layers_, *found));
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace tutti
