#include "tutti/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "run/planning/memory_search.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kPoints = 24;  ///< of the curve

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e6);
}

double added_ms_of(std::span<const LayerMemory> layers, std::span<const MemorySegment> segments) {
  double sum = 0;
  for (const auto& segment : segments) {
    if (!segment.again) continue;
    for (auto i = segment.first; i < segment.last; ++i) {
      sum += layers[static_cast<std::size_t>(i)].forward_ms;
    }
  }
  return sum;
}

/// The best plans of budgets from the least peak to that of the plain run, `chosen` among them.
std::vector<MemoryPoint> curve_of(const MemorySearch& search, std::uint64_t least,
                                  std::uint64_t plain, const MemoryPoint& chosen) {
  std::vector<MemoryPoint> all = {chosen};
  for (int p = 0; p <= kPoints; ++p) {
    const auto budget = least + (plain - least) * static_cast<std::uint64_t>(p) / kPoints;
    const auto found = search.best(budget);
    if (!found) continue;
    all.push_back({peak_of(search.layers(), *found), added_ms_of(search.layers(), *found)});
  }
  std::ranges::sort(all, [](const MemoryPoint& one, const MemoryPoint& other) {
    return one.peak != other.peak ? one.peak < other.peak : one.added_ms < other.added_ms;
  });
  std::vector<MemoryPoint> curve;
  for (const auto& point : all) {
    if (curve.empty() || point.added_ms < curve.back().added_ms) curve.push_back(point);
  }
  return curve;
}

}  // namespace

std::uint64_t peak_of(std::span<const LayerMemory> layers,
                      std::span<const MemorySegment> segments) {
  std::int64_t next = 0;
  std::uint64_t kept = 0;
  std::uint64_t peak = 0;
  bool before_is_plain = false;
  for (const auto& segment : segments) {
    if (segment.first != next || segment.last <= segment.first ||
        segment.last > std::ssize(layers)) {
      throw InvalidArgument(fmt::format("a memory plan: segment [{}, {}) after layer {} of {}",
                                        segment.first, segment.last, next, layers.size()));
    }
    // What runs plainly does so layer by layer.
    const auto size = segment.again ? segment.last - segment.first : 1;
    for (auto first = segment.first; first < segment.last; first += size) {
      const auto cost = cost_of(layers, {first, first + size, segment.again}, before_is_plain);
      kept += cost.input;
      peak = std::max(peak, kept + cost.peak);
      kept += cost.kept;
      before_is_plain = !segment.again;
    }
    next = segment.last;
  }
  if (next != std::ssize(layers)) {
    throw InvalidArgument(
        fmt::format("a memory plan: no segment has layer {} of {}", next, layers.size()));
  }
  return peak;
}

MemoryPlan plan_memory(std::vector<LayerMemory> layers, std::uint64_t budget) {
  MemoryPlan plan{.layers = std::move(layers), .budget = budget};
  const MemorySearch search(plan.layers);
  plan.plain_peak = search.plain_peak();
  plan.least_peak = search.least_peak();
  const auto found = search.best(budget);
  if (!found) {
    throw InvalidArgument(fmt::format(
        "a memory budget of {} MB: a step of these {} layers needs {} MB at least, with what runs "
        "again, and {} MB without",
        megabytes(budget), plan.layers.size(), megabytes(plan.least_peak),
        megabytes(plan.plain_peak)));
  }
  plan.segments = *found;
  plan.peak = peak_of(plan.layers, plan.segments);
  plan.added_ms = added_ms_of(plan.layers, plan.segments);
  for (const auto& layer : plan.layers) plan.forward_ms += layer.forward_ms;
  plan.curve = curve_of(search, plan.least_peak, plan.plain_peak, {plan.peak, plan.added_ms});
  return plan;
}

void require_share(double share) {
  if (share >= 0 && share <= 1) return;
  throw InvalidArgument(fmt::format("a memory budget of {}: a share is from 0 to 1", share));
}

std::uint64_t budget_of_share(std::span<const LayerMemory> layers, double share) {
  require_share(share);
  const MemorySearch search(layers);
  const auto least = search.least_peak();
  const auto plain = search.plain_peak();
  return least + static_cast<std::uint64_t>(std::floor(share * static_cast<double>(plain - least)));
}

// ---- to look at ----

std::string MemoryPlan::text() const {
  std::size_t width = 5;
  for (const auto& layer : layers) width = std::max(width, layer.name.size());
  auto text = fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}  {}\n", "layer", width, "kept, MB",
                          "result, MB", "forward, ms", "segment");
  int number = 0;
  for (const auto& segment : segments) {
    const auto what = segment.again ? fmt::format("{}, again", number++) : std::string("plain");
    for (auto i = segment.first; i < segment.last; ++i) {
      const auto& layer = layers[static_cast<std::size_t>(i)];
      text += fmt::format("{:<{}}  {:>10}  {:>10}  {:>11.3f}  {}\n", layer.name, width,
                          megabytes(layer.inside), megabytes(layer.result), layer.forward_ms, what);
    }
  }
  text += fmt::format("peak as computed {} MB; {} where nothing runs again, {} at least\n",
                      megabytes(peak), megabytes(plain_peak), megabytes(least_peak));
  text += measured_peak ? fmt::format("measured {} MB of {} allowed\n", megabytes(*measured_peak),
                                      megabytes(budget))
                        : fmt::format("{} MB allowed\n", megabytes(budget));
  text += fmt::format("runs again: {:.3f} ms beside {:.3f} ms of forward\n", added_ms, forward_ms);
  return text;
}

}  // namespace tutti
