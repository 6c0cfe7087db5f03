#include "run/numbers/metric_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "kernels/wide_fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Record = ShardMetrics::Record;

// The format: per shard the number of its records; per record the kind, the length of the name, the
// number of doubles, the name, the doubles. Numbers are 64 bits of this machine, unaligned.

bool is_mean(MetricKind kind) {
  return kind == MetricKind::mean || kind == MetricKind::weighted_mean;
}

std::span<const double> doubles_of(const Record& record) {
  if (record.kind == MetricKind::gather) return record.values;
  return std::span(record.partial).first(is_mean(record.kind) ? 2 : 1);
}

Record read_record(ByteReader& reader) {
  const auto kind = reader.value<std::uint64_t>();
  TUTTI_CHECK(kind <= static_cast<std::uint64_t>(MetricKind::gather), "metric of kind {}", kind);
  const auto length = reader.value<std::uint64_t>();
  const auto count = reader.value<std::uint64_t>();
  Record record;
  record.kind = static_cast<MetricKind>(kind);
  record.name = text_of(reader.bytes(length));
  TUTTI_CHECK(count <= reader.left.size() / sizeof(double), "{} values, {} bytes are left", count,
              reader.left.size());
  const auto doubles = reader.bytes(count * sizeof(double));
  void* to = record.partial.data();
  if (record.kind == MetricKind::gather) {
    record.values.resize(count);
    to = record.values.data();
  }
  TUTTI_CHECK(count == doubles_of(record).size(), "{} values of metric \"{}\"", count, record.name);
  if (count > 0) std::memcpy(to, doubles.data(), doubles.size());
  return record;
}

/// A record and who made it.
struct Leaf {
  std::int64_t shard;
  const Record* record;
};

Reduction reduction_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::max:
    case MetricKind::any:
      return Reduction::max;
    case MetricKind::min:
    case MetricKind::all:
      return Reduction::min;
    case MetricKind::product:
      return Reduction::product;
    default:
      return Reduction::sum;
  }
}

/// The value of one name over `total` shards. `leaves` are of one kind and ascend.
double folded(std::span<const Leaf> leaves, std::int64_t total) {
  const auto kind = leaves.front().record->kind;
  std::vector<Block> present;
  std::vector<const void*> sources;
  for (const auto& [shard, record] : leaves) {
    if (is_mean(kind) && record->partial[1] == 0) continue;
    present.push_back({shard, 1});
    sources.push_back(record->partial.data());
  }
  std::array<double, 2> result = {};
  void* const to = result.data();
  if (!present.empty()) {
    wide_fold(present, total,
              {.reduction = reduction_of(kind),
               .source_type = DType::float64,
               .result_type = DType::float64,
               .sources = sources,
               .destinations = {&to, 1},
               .count = is_mean(kind) ? 2 : 1});
  }
  return is_mean(kind) ? result[0] / result[1] : result[0];
}

void require_one_kind(std::string_view name, std::span<const Leaf> leaves) {
  const auto& first = leaves.front();
  for (const auto& leaf : leaves) {
    if (leaf.record->kind == first.record->kind) continue;
    throw InvalidArgument(fmt::format(
        "metric \"{}\" is recorded as {} by shard {} and as {} by shard {}: a name has one kind",
        name, name_of(first.record->kind), first.shard, name_of(leaf.record->kind), leaf.shard));
  }
}

}  // namespace

std::vector<std::byte> packed(std::span<const ShardMetrics> shards) {
  std::vector<std::byte> bytes;
  for (const auto& shard : shards) {
    append(bytes, std::uint64_t{shard.records().size()});
    for (const auto& record : shard.records()) {
      const auto doubles = doubles_of(record);
      append(bytes, static_cast<std::uint64_t>(record.kind));
      append(bytes, std::uint64_t{record.name.size()});
      append(bytes, std::uint64_t{doubles.size()});
      append_all(bytes, record.name);
      append_all(bytes, doubles);
    }
  }
  return bytes;
}

std::size_t pack(std::span<const ShardMetrics> shards, std::span<std::byte> area) {
  const auto bytes = packed(shards);
  if (bytes.size() > area.size()) {
    throw InvalidArgument(
        fmt::format("the metrics of this worker's {} shards need {} bytes, and there is room for "
                    "{}: record or gather less",
                    shards.size(), bytes.size(), area.size()));
  }
  std::ranges::copy(bytes, area.begin());
  return bytes.size();
}

std::vector<ShardMetrics> unpack(std::span<const std::byte> bytes) {
  std::vector<ShardMetrics> shards;
  for (ByteReader reader{bytes}; !reader.left.empty();) {
    std::vector<Record> records;
    for (auto left = reader.value<std::uint64_t>(); left > 0; --left)
      records.push_back(read_record(reader));
    shards.push_back(ShardMetrics::of(std::move(records)));
  }
  return shards;
}

ShardMetrics joined(const ShardMetrics& some, const ShardMetrics& more) {
  auto records = some.records();
  for (const auto& record : more.records()) {
    const auto is_same = [&](const Record& known) { return known.name == record.name; };
    if (std::ranges::any_of(some.records(), is_same)) {
      throw InvalidArgument(
          fmt::format("metric \"{}\" is recorded where a shard begins and where it ends: give it "
                      "two names",
                      record.name));
    }
    records.push_back(record);
  }
  return ShardMetrics::of(std::move(records));
}

Metrics reduce(std::span<const ShardMetrics> shards) {
  std::map<std::string_view, std::vector<Leaf>> by_name;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (const auto& record : shards[s].records()) {
      by_name[record.name].push_back({static_cast<std::int64_t>(s), &record});
    }
  }
  std::vector<Metric> metrics;
  for (const auto& [name, leaves] : by_name) {
    require_one_kind(name, leaves);
    Metric metric{.name = std::string(name),
                  .kind = leaves.front().record->kind,
                  .value = 0,
                  .values = {},
                  .shards = static_cast<std::int64_t>(leaves.size())};
    if (metric.kind == MetricKind::gather) {
      for (const auto& leaf : leaves) {
        const auto& values = leaf.record->values;
        metric.values.insert(metric.values.end(), values.begin(), values.end());
      }
    } else {
      metric.value = folded(leaves, static_cast<std::int64_t>(shards.size()));
    }
    metrics.push_back(std::move(metric));
  }
  return Metrics(std::move(metrics));
}

}  // namespace tutti
