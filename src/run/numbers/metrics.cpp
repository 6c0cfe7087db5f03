#include "tutti/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "run/numbers/mean_weight.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// The kernels' choice (combine-inl.h): the first where it is NaN or strictly better.
double better_of(MetricKind kind, double a, double b) {
  const bool is_better = kind == MetricKind::max || kind == MetricKind::any ? a > b : a < b;
  return std::isnan(a) || is_better ? a : b;
}

}  // namespace

std::string_view name_of(MetricKind kind) noexcept {
  switch (kind) {
    case MetricKind::sum:
      return "sum";
    case MetricKind::mean:
      return "mean";
    case MetricKind::weighted_mean:
      return "weighted_mean";
    case MetricKind::max:
      return "max";
    case MetricKind::min:
      return "min";
    case MetricKind::product:
      return "product";
    case MetricKind::all:
      return "all";
    case MetricKind::any:
      return "any";
    case MetricKind::gather:
      return "gather";
  }
  return "unknown";
}

void ShardMetrics::sum(std::string_view name, double value) {
  add(name, MetricKind::sum, value, 1);
}
void ShardMetrics::mean(std::string_view name, double value) {
  add(name, MetricKind::mean, value, 1);
}
void ShardMetrics::weighted_mean(std::string_view name, double value, double weight) {
  if (!(weight >= 0 && weight <= kMostMeanWeight)) {
    throw InvalidArgument(
        fmt::format("metric \"{}\" is recorded with weight {}: must be finite, not negative, "
                    "and at most {}",
                    name, weight, kMostMeanWeight));
  }
  add(name, MetricKind::weighted_mean, value, weight);
}
void ShardMetrics::max(std::string_view name, double value) {
  add(name, MetricKind::max, value, 1);
}
void ShardMetrics::min(std::string_view name, double value) {
  add(name, MetricKind::min, value, 1);
}
void ShardMetrics::product(std::string_view name, double value) {
  add(name, MetricKind::product, value, 1);
}
void ShardMetrics::all(std::string_view name, bool value) { add(name, MetricKind::all, value, 1); }
void ShardMetrics::any(std::string_view name, bool value) { add(name, MetricKind::any, value, 1); }
void ShardMetrics::gather(std::string_view name, double value) { gather(name, {&value, 1}); }
void ShardMetrics::gather(std::string_view name, std::span<const double> values) {
  auto& all = record(name, MetricKind::gather).values;
  all.insert(all.end(), values.begin(), values.end());
}

ShardMetrics ShardMetrics::of(std::vector<Record> records) {
  ShardMetrics metrics;
  metrics.records_ = std::move(records);
  return metrics;
}

void ShardMetrics::add(std::string_view name, MetricKind kind, double value, double weight) {
  const auto before = records_.size();
  auto& partial = record(name, kind).partial;
  bool is_new = records_.size() > before;
  switch (kind) {
    case MetricKind::mean:
    case MetricKind::weighted_mean:
      if (weight == 0) return;
      value = weight * value;
      is_new = partial[1] == 0;
      partial[1] += weight;
      [[fallthrough]];
    case MetricKind::sum:
      partial[0] = is_new ? value : partial[0] + value;
      return;
    case MetricKind::product:
      partial[0] = is_new ? value : partial[0] * value;
      return;
    default:
      partial[0] = is_new ? value : better_of(kind, partial[0], value);
  }
}

ShardMetrics::Record& ShardMetrics::record(std::string_view name, MetricKind kind) {
  if (name.empty()) throw InvalidArgument("a metric without a name");
  const auto found = std::ranges::find_if(
      records_, [&](const Record& r) { return r.kind == kind && r.name == name; });
  if (found != records_.end()) return *found;
  records_.push_back({std::string(name), kind, {}, {}});
  return records_.back();
}

Metrics::Metrics(std::vector<Metric> metrics) : metrics_(std::move(metrics)) {
  std::ranges::sort(metrics_, {}, &Metric::name);
  const auto twice = std::ranges::adjacent_find(metrics_, {}, &Metric::name);
  TUTTI_CHECK(twice == metrics_.end(), "metric \"{}\" twice", twice->name);
}

bool Metrics::contains(std::string_view name) const {
  return std::ranges::binary_search(metrics_, name, {}, &Metric::name);
}

double Metrics::at(std::string_view name) const {
  const auto& metric = find(name);
  if (metric.kind == MetricKind::gather) {
    throw InvalidArgument(
        fmt::format("metric \"{}\" is gathered: it has a value per record, see gathered()", name));
  }
  return metric.value;
}

const std::vector<double>& Metrics::gathered(std::string_view name) const {
  const auto& metric = find(name);
  if (metric.kind != MetricKind::gather) {
    throw InvalidArgument(fmt::format("metric \"{}\" is of kind {}: it has one value, see at()",
                                      name, name_of(metric.kind)));
  }
  return metric.values;
}

const Metric& Metrics::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(metrics_, name, {}, &Metric::name);
  if (found != metrics_.end() && found->name == name) return *found;
  std::vector<std::string> known;
  for (const auto& metric : metrics_) known.push_back(fmt::format("\"{}\"", metric.name));
  throw InvalidArgument(
      fmt::format("no shard recorded a metric \"{}\"; there is {}", name,
                  known.empty() ? "none" : fmt::to_string(fmt::join(known, ", "))));
}

}  // namespace tutti
