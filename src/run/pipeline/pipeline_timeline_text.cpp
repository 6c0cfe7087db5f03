#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "run/pipeline/pipeline_timeline_parts.h"

namespace tutti {
namespace {

constexpr double kMostColumns = 160;
constexpr int kMostLetters = 26;

char letter_of(StageWork work) {
  switch (work) {
    case StageWork::forward:
      return 'F';
    case StageWork::backward:
    case StageWork::backward_input:
      return 'B';
    case StageWork::backward_weight:
      return 'W';
  }
  return '?';
}

std::string label_of(const TimedAction& timed, const std::vector<std::vector<int>>& stages) {
  auto label = fmt::format("{}{}", letter_of(timed.action.work), timed.action.micro_batch);
  const auto& own = stages[static_cast<std::size_t>(timed.worker)];
  if (own.size() > 1) label += static_cast<char>('a' + place_of(timed, stages) % kMostLetters);
  return label;
}

/// Columns per millisecond: as many as the narrowest action needs for its label.
double scale_of(const PipelineTimeline& timeline, const std::vector<std::vector<int>>& stages) {
  double scale = 0;
  for (const auto& timed : timeline.actions()) {
    const double ms = timed.end_ms - timed.start_ms;
    if (ms <= 0) continue;
    scale = std::max(scale, (static_cast<double>(label_of(timed, stages).size()) + 1) / ms);
  }
  return timeline.makespan_ms() > 0 ? std::min(scale, kMostColumns / timeline.makespan_ms()) : 0;
}

/// The label, a line to the last column but one, and a gap, as far as there is room.
std::string box_of(const std::string& label, std::size_t columns) {
  if (columns == 0) return "";
  auto box = label.size() <= columns ? label : label.substr(0, 1);
  if (box.size() < columns) box.append(columns - box.size() - 1, '-').append(" ");
  return box;
}

std::string joined(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::string rows_of(const PipelineTimeline& timeline, const std::vector<std::vector<int>>& stages) {
  const double scale = scale_of(timeline, stages);
  const auto column = [&](double ms) { return static_cast<std::size_t>(std::lround(ms * scale)); };
  std::vector<std::string> rows(stages.size(), std::string(column(timeline.makespan_ms()), '.'));
  for (const auto& timed : timeline.actions()) {
    const auto first = column(timed.start_ms);
    const auto box = box_of(label_of(timed, stages), column(timed.end_ms) - first);
    rows[static_cast<std::size_t>(timed.worker)].replace(first, box.size(), box);
  }
  std::string text;
  for (std::size_t w = 0; w < rows.size(); ++w) {
    text += fmt::format("worker {:<3} |{}|\n", w, rows[w]);
  }
  return text;
}

std::string legend_of(const PipelineTimeline& timeline,
                      const std::vector<std::vector<int>>& stages) {
  std::string text = has_halves(timeline)
                         ? "F forward, B backward (of the input, where there is a W), W backward "
                           "of the weights"
                         : "F forward, B backward";
  text += " of the micro-batch; . idle";
  if (std::ranges::any_of(stages, [](const auto& own) { return own.size() > 1; })) {
    text += "; a, b, …: the worker's first, second, … stage";
  }
  return text + "\n";
}

}  // namespace

std::vector<std::vector<int>> stages_by_worker(const PipelineTimeline& timeline) {
  std::vector<std::set<int>> found(timeline.workers().size());
  for (const auto& timed : timeline.actions()) {
    found[static_cast<std::size_t>(timed.worker)].insert(timed.action.stage);
  }
  std::vector<std::vector<int>> stages;
  for (const auto& own : found) stages.emplace_back(own.begin(), own.end());
  return stages;
}

int place_of(const TimedAction& timed, const std::vector<std::vector<int>>& stages) {
  const auto& own = stages[static_cast<std::size_t>(timed.worker)];
  return static_cast<int>(std::ranges::lower_bound(own, timed.action.stage) - own.begin());
}

bool has_halves(const PipelineTimeline& timeline) {
  return std::ranges::any_of(timeline.actions(), [](const TimedAction& timed) {
    return timed.action.work == StageWork::backward_input ||
           timed.action.work == StageWork::backward_weight;
  });
}

std::string PipelineTimeline::text() const {
  const auto stages = stages_by_worker(*this);
  const bool has_bytes =
      std::ranges::any_of(workers_, [](const WorkerUse& worker) { return worker.peak_bytes > 0; });
  auto text = title_ + "\n" + rows_of(*this, stages) + legend_of(*this, stages);
  text += fmt::format("\n{:<6}  {:>10}  {:>8}  {:>10}  {:>12}{}\n", "worker", "busy, ms", "bubble",
                      "stages", "micro-batches", has_bytes ? "    kept, MB" : "");
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    std::vector<int> held;
    for (const int s : stages[w]) held.push_back(stages_[static_cast<std::size_t>(s)].peak_held);
    text += fmt::format("{:<6}  {:>10.3f}  {:>6.1f} %  {:>10}  {:>13}", w, workers_[w].busy_ms,
                        100 * workers_[w].bubble, joined(stages[w]), joined(held));
    if (has_bytes) {
      text += fmt::format("  {:>10.2f}", static_cast<double>(workers_[w].peak_bytes) / 1e6);
    }
    text += "\n";
  }
  text += fmt::format("all workers: {:.3f} ms, bubble {:.1f} %\n", makespan_ms_, 100 * bubble_);
  text += "micro-batches: that a stage keeps something of, at its peak";
  if (has_halves(*this)) {
    std::vector<int> in_flight;
    for (const auto& stage : stages_) in_flight.push_back(stage.peak_in_flight);
    text += fmt::format("; until the input's half: {}", joined(in_flight));
  }
  return text + "\n";
}

}  // namespace tutti
