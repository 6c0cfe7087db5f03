#pragma once

// What a step is measured by: shards record values, and after the step every worker has the values
// of the whole step.
//
//   trainer.step([&](tutti::Shard& shard) {
//     …
//     shard.metrics().weighted_mean("loss", loss.item<double>(), tokens);
//     shard.metrics().sum("tokens", tokens);
//   });
//
// Metrics are partials: per name, the values of the shards that recorded it are folded along the
// canonical tree over the shards of the step (docs/numerics.md), in float64. A shard that did not
// record the name is absent. So no bit depends on the number of workers.
//
// Threads: one per ShardMetrics; Metrics is a value. Failure: InvalidArgument.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class MetricKind : std::uint8_t {
  sum,
  mean,
  weighted_mean,
  max,
  min,
  product,
  all,
  any,
  gather
};
/// "sum", "weighted_mean", …
std::string_view name_of(MetricKind kind) noexcept;

/// What one shard records. A name that is recorded again adds to what the shard has: its own values
/// are combined in the order of the calls. Names are not empty. A name that is used with two kinds,
/// by whichever shards, makes the step's reduction throw InvalidArgument on every worker.
class ShardMetrics {
 public:
  void sum(std::string_view name, double value);
  /// Σ value / number of values, over all shards.
  void mean(std::string_view name, double value);
  /// Σ weight · value / Σ weight over all shards; each product is rounded once. A value of weight 0
  /// counts for nothing, even if it is NaN; the mean is NaN where no value has a weight.
  /// InvalidArgument for a weight that is negative, not finite, or above 1e150.
  void weighted_mean(std::string_view name, double value, double weight);
  /// NaN if any value is NaN.
  void max(std::string_view name, double value);
  void min(std::string_view name, double value);
  void product(std::string_view name, double value);
  /// 1 if every value is true, else 0.
  void all(std::string_view name, bool value);
  /// 1 if some value is true, else 0.
  void any(std::string_view name, bool value);
  /// All values of all shards, in the order of the shards: Metrics::gathered().
  void gather(std::string_view name, double value);
  void gather(std::string_view name, std::span<const double> values);

  /// Forgets everything.
  void clear() { records_.clear(); }

  /// What the shard has of one name and kind.
  struct Record {
    std::string name;
    MetricKind kind = MetricKind::sum;
    /// The value, or Σ weight · value and Σ weight for means. Σ weight is 0 while there is none.
    std::array<double, 2> partial = {};
    std::vector<double> values;  ///< gather only
    friend bool operator==(const Record&, const Record&) = default;
  };
  /// In the order of their first calls.
  const std::vector<Record>& records() const { return records_; }
  /// A shard that has recorded so.
  static ShardMetrics of(std::vector<Record> records);

 private:
  void add(std::string_view name, MetricKind kind, double value, double weight);
  Record& record(std::string_view name, MetricKind kind);
  std::vector<Record> records_;
};

/// One metric of a whole step.
struct Metric {
  std::string name;
  MetricKind kind = MetricKind::sum;
  double value = 0;            ///< all kinds but gather
  std::vector<double> values;  ///< gather only
  std::int64_t shards = 0;     ///< how many recorded it
};

/// The metrics of a step, the same bytes on every worker. Iterates over Metric in the order of the
/// names.
class Metrics {
 public:
  Metrics() = default;
  /// Names differ.
  explicit Metrics(std::vector<Metric> metrics);

  bool contains(std::string_view name) const;
  /// InvalidArgument that names what there is if no shard recorded the name, or for a gathered one.
  double at(std::string_view name) const;
  double operator[](std::string_view name) const { return at(name); }
  /// InvalidArgument if no shard gathered the name.
  const std::vector<double>& gathered(std::string_view name) const;

  auto begin() const { return metrics_.begin(); }
  auto end() const { return metrics_.end(); }
  std::size_t size() const { return metrics_.size(); }
  bool empty() const { return metrics_.empty(); }

 private:
  const Metric& find(std::string_view name) const;
  std::vector<Metric> metrics_;  ///< by name
};

}  // namespace tutti
