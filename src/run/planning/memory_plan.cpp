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

/// Where an axis up to `most` has its marks: multiples of 1, 2 or 5 times a power of ten.
std::vector<double> marks_up_to(double most) {
  const auto power = std::pow(10, std::floor(std::log10(most / 4)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (most / step > 6) step = factor * power;
  }
  std::vector<double> marks;
  for (int k = 0; k * step <= most; ++k) marks.push_back(k * step);
  return marks;
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

std::string MemoryPlan::picture() const {
  constexpr double kWidth = 640;
  constexpr double kHeight = 400;
  constexpr double kMargin = 60;
  double most_ms = 1e-9;
  for (const auto& point : curve) most_ms = std::max(most_ms, point.added_ms);
  most_ms *= 1.05;
  const auto most_mb =
      static_cast<double>(std::max({std::uint64_t{1}, plain_peak, measured_peak.value_or(0)})) *
      1.05 / 1e6;
  const auto x = [&](double mb) { return kMargin + mb / most_mb * (kWidth - 2 * kMargin); };
  const auto at = [&](std::uint64_t bytes) { return x(static_cast<double>(bytes) / 1e6); };
  const auto y = [&](double ms) {
    return kHeight - kMargin - ms / most_ms * (kHeight - 2 * kMargin);
  };
  auto svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"14\">{3} layers, of which segments run again</text>\n"
      "<path d=\"M{2} {2} V{4} H{5}\" fill=\"none\" stroke=\"black\"/>\n"
      "<text x=\"{6}\" y=\"{7}\" text-anchor=\"middle\">peak of a step, MB</text>\n"
      "<text x=\"{2}\" y=\"{8}\">time of what runs again, ms</text>\n",
      kWidth, kHeight, kMargin, layers.size(), kHeight - kMargin, kWidth - kMargin, kWidth / 2,
      kHeight - 20, kMargin - 10);
  for (const double mb : marks_up_to(most_mb)) {
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1} v4\" stroke=\"black\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{2}\" text-anchor=\"middle\">{3:.6g}</text>\n",
        x(mb), kHeight - kMargin, kHeight - kMargin + 16, mb);
  }
  for (const double ms : marks_up_to(most_ms)) {
    svg += fmt::format(
        "<path d=\"M{0} {1:.1f} h-4\" stroke=\"black\"/>\n"
        "<text x=\"{2}\" y=\"{3:.1f}\" text-anchor=\"end\">{4:.6g}</text>\n",
        kMargin, y(ms), kMargin - 6, y(ms) + 4, ms);
  }
  std::string path;
  for (const auto& point : curve) {
    // A plan serves every budget up to that of the next, better one.
    path += path.empty() ? fmt::format("M{:.1f} {:.1f}", at(point.peak), y(point.added_ms))
                         : fmt::format(" H{:.1f} V{:.1f}", at(point.peak), y(point.added_ms));
  }
  svg +=
      fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\"/>\n", path);
  for (const auto& point : curve) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#1f77b4\"/>\n",
                       at(point.peak), y(point.added_ms));
  }
  const auto shown = std::min(at(budget), kWidth - kMargin);
  svg += fmt::format(
      "<path d=\"M{0:.1f} {1} V{2}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\n"
      "<text x=\"{0:.1f}\" y=\"{3}\" fill=\"#555\" text-anchor=\"{4}\">budget {5} MB</text>\n",
      shown, kMargin, kHeight - kMargin, kMargin + 10, shown > 0.75 * kWidth ? "end" : "start",
      megabytes(budget));
  auto label = fmt::format("chosen: {} MB computed", megabytes(peak));
  if (measured_peak) label += fmt::format(", {} measured", megabytes(*measured_peak));
  // The curve falls: below it on its left there is room, or above it on its right.
  const bool is_right = at(peak) > kWidth / 2;
  svg += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\" fill=\"none\" stroke=\"#d62728\" "
      "stroke-width=\"2\"/>\n<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#d62728\" "
      "text-anchor=\"{}\">{}</text>\n</svg>\n",
      at(peak), y(added_ms), at(peak) + (is_right ? -10 : 10), y(added_ms) + (is_right ? 16 : -8),
      is_right ? "end" : "start", label);
  return svg;
}

}  // namespace tutti
