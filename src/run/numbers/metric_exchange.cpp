#include "run/numbers/metric_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "kernels/wide_fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Record = ShardMetrics::Record;

// The format: per shard the number of its records; per record the kind, the length of the name, the
// number of doubles, the name, the doubles. Numbers are 64 bits of this machine, unaligned.
constexpr std::size_t kNumber = sizeof(std::uint64_t);

bool is_mean(MetricKind kind) {
  return kind == MetricKind::mean || kind == MetricKind::weighted_mean;
}

std::span<const double> doubles_of(const Record& record) {
  if (record.kind == MetricKind::gather) return record.values;
  return std::span(record.partial).first(is_mean(record.kind) ? 2 : 1);
}

class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  void number(std::uint64_t value) { bytes(&value, kNumber); }
  void bytes(const void* from, std::size_t size) {
    if (size > 0) std::memcpy(to_, from, size);
    to_ += size;
  }

 private:
  std::byte* to_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : left_(from) {}
  bool done() const { return left_.empty(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(1, kNumber), kNumber);
    return value;
  }
  /// `count` elements of that many bytes.
  const std::byte* take(std::uint64_t count, std::size_t size) {
    TUTTI_CHECK(count <= left_.size() / size, "{} times {} bytes of metrics, {} are left", count,
                size, left_.size());
    const auto* at = left_.data();
    left_ = left_.subspan(count * size);
    return at;
  }

 private:
  std::span<const std::byte> left_;
};

Record read_record(Reader& reader) {
  const auto kind = reader.number();
  TUTTI_CHECK(kind <= static_cast<std::uint64_t>(MetricKind::gather), "metric of kind {}", kind);
  const auto length = reader.number();
  const auto count = reader.number();
  Record record;
  record.kind = static_cast<MetricKind>(kind);
  record.name.assign(reinterpret_cast<const char*>(reader.take(length, 1)), length);
  const auto* doubles = reader.take(count, sizeof(double));
  void* to = record.partial.data();
  if (record.kind == MetricKind::gather) {
    record.values.resize(count);
    to = record.values.data();
  }
  TUTTI_CHECK(count == doubles_of(record).size(), "{} values of metric \"{}\"", count, record.name);
  if (count > 0) std::memcpy(to, doubles, count * sizeof(double));
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

std::size_t packed_size(std::span<const ShardMetrics> shards) {
  std::size_t bytes = 0;
  for (const auto& shard : shards) {
    bytes += kNumber;
    for (const auto& record : shard.records()) {
      bytes += 3 * kNumber + record.name.size() + doubles_of(record).size_bytes();
    }
  }
  return bytes;
}

std::size_t pack(std::span<const ShardMetrics> shards, std::span<std::byte> area) {
  const auto needed = packed_size(shards);
  if (needed > area.size()) {
    throw InvalidArgument(
        fmt::format("the metrics of this worker's {} shards need {} bytes, and there is room for "
                    "{}: record or gather less",
                    shards.size(), needed, area.size()));
  }
  Writer writer(area.data());
  for (const auto& shard : shards) {
    writer.number(shard.records().size());
    for (const auto& record : shard.records()) {
      const auto doubles = doubles_of(record);
      writer.number(static_cast<std::uint64_t>(record.kind));
      writer.number(record.name.size());
      writer.number(doubles.size());
      writer.bytes(record.name.data(), record.name.size());
      writer.bytes(doubles.data(), doubles.size_bytes());
    }
  }
  return needed;
}

std::vector<ShardMetrics> unpack(std::span<const std::byte> bytes) {
  std::vector<ShardMetrics> shards;
  for (Reader reader(bytes); !reader.done();) {
    std::vector<Record> records;
    for (auto left = reader.number(); left > 0; --left) records.push_back(read_record(reader));
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
