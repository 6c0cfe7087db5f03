#include "apps/tutti/compare/comparison.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/error.h"

namespace tutti::command {
namespace {

using StepPair = std::pair<const LoggedStep*, const LoggedStep*>;

std::vector<StepPair> common_steps(const StepLogFile& a, const StepLogFile& b) {
  std::vector<StepPair> common;
  auto in_b = b.steps().begin();
  for (const LoggedStep& step : a.steps()) {
    while (in_b != b.steps().end() && in_b->step < step.step) ++in_b;
    if (in_b == b.steps().end()) break;
    if (in_b->step == step.step) common.emplace_back(&step, &*in_b);
  }
  return common;
}

std::string range_of(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("{}", first) : fmt::format("{} … {}", first, last);
}

std::string steps_text(const StepLogFile& log) {
  const auto& steps = log.steps();
  if (steps.empty()) return "no digests";
  return fmt::format("digests of {} ({})", counted(steps.size(), "step"),
                     range_of(steps.front().step, steps.back().step));
}

std::string introduction(const char* letter, const StepLogFile& log) {
  std::string text = fmt::format("{}: {}\n", letter, steps_text(log));
  if (log.unfinished_line())
    text += fmt::format(
        "note: {} ends within line {}, which is passed over: its run was killed or still writes\n",
        letter, *log.unfinished_line());
  return text;
}

/// The names whose digests differ, in A's order. Both sides must have the same names.
std::vector<std::string> differing(const NamedDigests& a, const NamedDigests& b,
                                   std::int64_t step) {
  std::map<std::string_view, std::string_view> in_b(b.begin(), b.end());
  const auto fail = [&](std::string_view name, const char* where) {
    throw InvalidArgument(
        fmt::format("the runs have other parameters: at step {}, {} is only in {}", step,
                    quoted(std::string(name)), where));
  };
  std::vector<std::string> names;
  for (const auto& [name, digest] : a) {
    const auto at = in_b.find(name);
    if (at == in_b.end()) fail(name, "A");
    if (at->second != digest) names.push_back(name);
    in_b.erase(at);
  }
  if (!in_b.empty()) fail(in_b.begin()->first, "B");
  return names;
}

/// The subject of a digest, by the form of its name (run/log/step_log.h).
std::string subject(const std::string& name) {
  return (name.starts_with("buffer:") ? "" : "parameter ") + quoted(name);
}

std::string difference_text(std::int64_t step, const std::vector<std::string>& names,
                            std::size_t all) {
  std::vector<std::string> list(names.size());
  std::transform(names.begin(), names.end(), list.begin(), quoted);
  return fmt::format("first difference: step {}, {}\nat step {}, {} of {} differ:\n{}", step,
                     subject(names.front()), step, names.size(), all, as_list(list));
}

std::string equal_text(const std::vector<StepPair>& steps, std::size_t count, const char* noun) {
  return fmt::format("equal in {} ({})\n", counted(count, noun),
                     range_of(steps.front().first->step, steps[count - 1].first->step));
}

}  // namespace

Comparison compare_logs(const StepLogFile& a, const StepLogFile& b) {
  Comparison found{.text = introduction("A", a) + introduction("B", b)};
  found.text += facts_text(a.facts(), b.facts());
  const auto steps = common_steps(a, b);
  if (steps.empty())
    throw InvalidArgument(fmt::format("no step has digests in both: A has {}, B has {}",
                                      steps_text(a), steps_text(b)));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& [in_a, in_b] = steps[i];
    if (in_a->hash == in_b->hash) continue;
    const NamedDigests digests = a.digests(*in_a);
    const auto names = differing(digests, b.digests(*in_b), in_a->step);
    if (names.empty()) continue;  // written otherwise
    if (i > 0) found.text += equal_text(steps, i, "earlier common step");
    found.text += difference_text(in_a->step, names, digests.size());
    return found;
  }
  found.equal = true;
  found.text += equal_text(steps, steps.size(), "common step");
  return found;
}

}  // namespace tutti::command
