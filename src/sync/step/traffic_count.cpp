#include "sync/step/traffic_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti {
namespace {

GroupTraffic of_group(const Plan& plan, const std::vector<std::uint32_t>& members) {
  GroupTraffic group;
  const auto name = [&](std::uint32_t p) { return plan.parameters()[p].spec.name; };
  group.parameters = name(members.front());
  if (members.size() > 1) {
    group.parameters += fmt::format(" … {} ({})", name(members.back()), members.size());
  }
  group.elements = elements_of(plan, members);
  return group;
}

void add(GroupTraffic& sum, const GroupTraffic& one) {
  sum.messages += one.messages;
  sum.dense_messages += one.dense_messages;
  sum.values += one.values;
  sum.touched += one.touched;
  sum.bytes += one.bytes;
  sum.bytes_dense += one.bytes_dense;
}

std::string line_of(const GroupTraffic& group, std::size_t width, std::int64_t steps) {
  const auto per_step = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / 1e6 / static_cast<double>(steps);
  };
  const double times =
      group.bytes == 0 ? 0
                       : static_cast<double>(group.bytes_dense) / static_cast<double>(group.bytes);
  // A character of several bytes is one column.
  std::size_t columns = 0;
  for (const char c : group.parameters) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return fmt::format(
      "{}{:{}}{:>12}{:>12.4f}{:>12.4f}{:>8.1f}{:>10.2f}%{:>9}{:>14.4g}\n", group.parameters, "",
      width - columns, group.elements, per_step(group.bytes_dense), per_step(group.bytes), times,
      100 * group.density(),
      group.messages == 0
          ? std::string("-")
          : fmt::format("{:.0f}%", 100.0 * static_cast<double>(group.dense_messages) /
                                       static_cast<double>(group.messages)),
      group.residual_norm);
}

}  // namespace

TrafficReport merged(TrafficReport one, const TrafficReport& other) {
  for (const auto list : {&TrafficReport::last_step, &TrafficReport::all_steps}) {
    (one.*list).insert((one.*list).end(), (other.*list).begin(), (other.*list).end());
  }
  return one;
}

TrafficCount::TrafficCount(const Plan& plan, const ParameterGroups& groups) {
  for (const auto& members : groups) report_.all_steps.push_back(of_group(plan, members));
  report_.last_step = report_.all_steps;
}

void TrafficCount::begin() {
  for (auto& group : report_.last_step) {
    group = {.parameters = std::move(group.parameters), .elements = group.elements};
  }
}

void TrafficCount::end(int collectives) {
  ++report_.steps;
  report_.collectives += collectives;
  for (std::size_t g = 0; g < report_.all_steps.size(); ++g) {
    add(report_.all_steps[g], report_.last_step[g]);
  }
}

PlainTraffic::PlainTraffic(const Plan& plan, ParameterGroups groups, int workers)
    : plan_(plan),
      groups_(std::move(groups)),
      workers_(static_cast<std::uint64_t>(workers)),
      count_(plan, groups_) {}

void PlainTraffic::note(const NodeStore& nodes) {
  count_.begin();
  const auto held = nodes.held();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = count_.group(g);
    for (std::size_t n = 0; n < held.size();) {
      NodeRange mine{n, n};
      while (mine.end < held.size() && held[mine.end].worker == held[n].worker) ++mine.end;
      n = mine.end;
      std::int64_t touched = 0;
      for (const auto p : groups_[g]) {
        if (!nodes.touched(p, mine)) continue;
        touched += plan_.parameters()[p].spec.count;
        group.bytes += plan_.bytes_of(p);
      }
      if (touched == 0) continue;
      ++group.messages;
      ++group.dense_messages;
      group.values += touched;
      group.touched += touched;
    }
    for (const auto p : groups_[g]) {
      if (nodes.touched(p)) group.bytes += workers_ * plan_.bytes_of(p);
    }
    group.bytes_dense = group.bytes;
  }
}

std::string TrafficReport::table() const {
  if (steps == 0) return "nothing was sent\n";
  std::size_t width = 12;
  for (const auto& group : all_steps) width = std::max(width, group.parameters.size() + 2);
  std::string text =
      fmt::format("{:{}}{:>12}{:>12}{:>12}{:>8}{:>11}{:>9}{:>14}\n", "per step, of", width,
                  "elements", "MB dense", "MB sent", "times", "density", "dense", "residual");
  GroupTraffic sum{.parameters = "all"};
  double squares = 0;
  for (const auto& group : all_steps) {
    text += line_of(group, width, steps);
    add(sum, group);
    sum.elements += group.elements;
    squares += group.residual_norm * group.residual_norm;
  }
  sum.residual_norm = std::sqrt(squares);
  text += line_of(sum, width, steps);
  text += fmt::format("{} steps, {} collectives\n", steps, collectives);
  return text;
}

}  // namespace tutti
