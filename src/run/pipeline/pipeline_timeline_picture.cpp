#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "run/pipeline/pipeline_timeline_parts.h"

namespace tutti {
namespace {

constexpr double kLeft = 80;
constexpr double kRight = 90;
constexpr double kTop = 70;
constexpr double kBottom = 50;
constexpr double kRow = 30;   ///< from one worker to the next
constexpr double kBox = 24;   ///< height of a compute
constexpr double kDigit = 7;  ///< width of a digit
constexpr double kTitleLetter = 8;
constexpr double kLeastBox = 20;
constexpr double kLeastWidth = 720;
constexpr double kMostWidth = 2400;

struct Colour {
  int red, green, blue;
};

struct Look {
  StageWork work;
  Colour colour;
  std::string_view name;
};

/// Told apart by those who see few colours as well: the second is the lightest, the last the
/// darkest.
constexpr std::array<Look, 4> kLooks = {{
    {StageWork::forward, {74, 134, 196}, "forward"},
    {StageWork::backward, {238, 153, 68}, "backward"},
    {StageWork::backward_input, {245, 200, 90}, "backward, input"},
    {StageWork::backward_weight, {38, 115, 77}, "backward, weights"},
}};

const Look& look_of(StageWork work) { return kLooks[static_cast<std::size_t>(work)]; }

/// Later stages of a worker are lighter.
Colour shade_of(Colour colour, int place, std::size_t places) {
  const double share = places > 1 ? 0.6 * place / static_cast<double>(places - 1) : 0;
  const auto mix = [&](int value) { return static_cast<int>(value + (255 - value) * share); };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

std::string text_of(Colour colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

std::string_view ink_on(Colour colour) {
  const int lightness = 299 * colour.red + 587 * colour.green + 114 * colour.blue;
  return lightness > 140000 ? "black" : "white";
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

/// 1, 2 or 5 times a power of ten, so that there are ten ticks at most.
double tick_of(double makespan_ms) {
  const double least = makespan_ms / 10;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= least) return times * power;
  }
  return 10 * power;
}

std::string heading_of(const PipelineTimeline& timeline) {
  return fmt::format("{}: {:.4g} ms, bubble {:.1f} %", timeline.title(), timeline.makespan_ms(),
                     100 * timeline.bubble());
}

/// The heading has room from the begin of the rows to the right edge.
double width_of(const PipelineTimeline& timeline, const std::string& heading) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& timed : timeline.actions()) {
    const double ms = timed.end_ms - timed.start_ms;
    if (ms > 0) shortest = std::min(shortest, ms);
  }
  const double boxes =
      std::clamp(timeline.makespan_ms() / shortest * kLeastBox, kLeastWidth, kMostWidth);
  return std::max(boxes, kTitleLetter * static_cast<double>(heading.size()) - kRight);
}

std::string legend_of(const PipelineTimeline& timeline, bool has_shades) {
  std::string svg;
  double x = kLeft;
  for (const auto& look : kLooks) {
    const bool is_there = std::ranges::any_of(timeline.actions(), [&](const TimedAction& timed) {
      return timed.action.work == look.work;
    });
    if (!is_there) continue;
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"42\" width=\"14\" height=\"14\" fill=\"{}\"/>\n"
        "<text x=\"{:.0f}\" y=\"54\">{}</text>\n",
        x, text_of(look.colour), x + 20, look.name);
    x += 44 + kDigit * static_cast<double>(look.name.size());
  }
  return svg + fmt::format("<text x=\"{:.0f}\" y=\"54\">number: micro-batch{}</text>\n", x,
                           has_shades ? "; lighter: later stage of the worker" : "");
}

std::string axis_of(const PipelineTimeline& timeline, double scale, double bottom) {
  std::string svg;
  if (timeline.makespan_ms() <= 0) return svg;
  const double tick = tick_of(timeline.makespan_ms());
  for (int i = 0; i * tick <= timeline.makespan_ms(); ++i) {
    const double x = kLeft + i * tick * scale;
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1:.0f} v5\" stroke=\"black\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{2:.0f}\" text-anchor=\"middle\">{3:.6g}</text>\n",
        x, bottom, bottom + 18, i * tick);
  }
  return svg + fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">ms</text>\n",
                           kLeft - 8, bottom + 18);
}

}  // namespace

std::string PipelineTimeline::picture() const {
  const auto stages = stages_by_worker(*this);
  const auto heading = heading_of(*this);
  const double width = width_of(*this, heading);
  const double scale = makespan_ms_ > 0 ? width / makespan_ms_ : 0;
  const auto rows = static_cast<double>(workers_.size());
  const double bottom = kTop + rows * kRow;
  auto svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"15\">{3}</text>\n"
      "<text x=\"{4:.0f}\" y=\"54\" text-anchor=\"end\">bubble</text>\n",
      kLeft + width + kRight, bottom + kBottom, kLeft, escaped(heading),
      kLeft + width + kRight - 20);
  svg +=
      legend_of(*this, std::ranges::any_of(stages, [](const auto& own) { return own.size() > 1; }));
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const double y = kTop + static_cast<double>(w) * kRow;
    svg += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">worker {}</text>\n"
        "<rect x=\"{}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f4f4f4\"/>\n"
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{:.1f} %</text>\n",
        kLeft - 8, y + 17, w, kLeft, y, width, kBox, kLeft + width + kRight - 20, y + 17,
        100 * workers_[w].bubble);
  }
  for (const auto& timed : actions_) {
    const auto w = static_cast<std::size_t>(timed.worker);
    const double x = kLeft + timed.start_ms * scale;
    const double wide = (timed.end_ms - timed.start_ms) * scale;
    const double y = kTop + static_cast<double>(w) * kRow;
    const auto colour =
        shade_of(look_of(timed.action.work).colour, place_of(timed, stages), stages[w].size());
    svg += fmt::format(
        "<g><title>{}: {:.6g} to {:.6g} ms</title><rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" "
        "height=\"{}\" fill=\"{}\" stroke=\"white\"/>",
        tutti::text_of(timed.action), timed.start_ms, timed.end_ms, x, y, wide, kBox,
        text_of(colour));
    const auto number = std::to_string(timed.action.micro_batch);
    if (wide >= kDigit * static_cast<double>(number.size()) + 4) {
      svg += fmt::format(
          "<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
          x + wide / 2, y + 16, ink_on(colour), number);
    }
    svg += "</g>\n";
  }
  return svg + axis_of(*this, scale, bottom) + "</svg>\n";
}

}  // namespace tutti
