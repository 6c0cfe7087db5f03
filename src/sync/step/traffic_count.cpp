#include "sync/step/traffic_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti {
namespace {

BucketTraffic of_bucket(const Plan& plan, const std::vector<std::uint32_t>& members) {
  BucketTraffic bucket;
  const auto name = [&](std::uint32_t p) { return plan.parameters()[p].spec.name; };
  bucket.parameters = name(members.front());
  if (members.size() > 1) {
    bucket.parameters += fmt::format(" … {} ({})", name(members.back()), members.size());
  }
  bucket.elements = elements_of(plan, members);
  return bucket;
}

void add(BucketTraffic& sum, const BucketTraffic& one) {
  sum.messages += one.messages;
  sum.dense_messages += one.dense_messages;
  sum.values += one.values;
  sum.touched += one.touched;
  sum.bytes += one.bytes;
  sum.bytes_dense += one.bytes_dense;
}

std::string line_of(const BucketTraffic& bucket, std::size_t width, std::int64_t steps) {
  const auto per_step = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / 1e6 / static_cast<double>(steps);
  };
  const double times = bucket.bytes == 0 ? 0
                                         : static_cast<double>(bucket.bytes_dense) /
                                               static_cast<double>(bucket.bytes);
  // A character of several bytes is one column.
  std::size_t columns = 0;
  for (const char c : bucket.parameters) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return fmt::format(
      "{}{:{}}{:>12}{:>12.4f}{:>12.4f}{:>8.1f}{:>10.2f}%{:>9}{:>14.4g}\n", bucket.parameters, "",
      width - columns, bucket.elements, per_step(bucket.bytes_dense), per_step(bucket.bytes), times,
      100 * bucket.density(),
      bucket.messages == 0
          ? std::string("-")
          : fmt::format("{:.0f}%", 100.0 * static_cast<double>(bucket.dense_messages) /
                                       static_cast<double>(bucket.messages)),
      bucket.residual_norm);
}

}  // namespace

TrafficReport merged(TrafficReport one, const TrafficReport& other) {
  for (const auto list : {&TrafficReport::last_step, &TrafficReport::all_steps}) {
    (one.*list).insert((one.*list).end(), (other.*list).begin(), (other.*list).end());
  }
  return one;
}

TrafficCount::TrafficCount(const Plan& plan, const Buckets& buckets) {
  for (const auto& members : buckets) report_.all_steps.push_back(of_bucket(plan, members));
  report_.last_step = report_.all_steps;
}

void TrafficCount::begin() {
  for (auto& bucket : report_.last_step) {
    bucket = {.parameters = std::move(bucket.parameters), .elements = bucket.elements};
  }
}

void TrafficCount::end(int collectives) {
  ++report_.steps;
  report_.collectives += collectives;
  for (std::size_t b = 0; b < report_.all_steps.size(); ++b) {
    add(report_.all_steps[b], report_.last_step[b]);
  }
}

PlainTraffic::PlainTraffic(const Plan& plan, Buckets buckets, int workers)
    : plan_(plan),
      buckets_(std::move(buckets)),
      workers_(static_cast<std::uint64_t>(workers)),
      count_(plan, buckets_) {}

void PlainTraffic::note(const NodeStore& nodes) {
  count_.begin();
  const auto& held = nodes.held();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    auto& bucket = count_.bucket(b);
    for (std::size_t n = 0; n < held.size();) {
      NodeRange mine{n, n};
      while (mine.end < held.size() && held[mine.end].worker == held[n].worker) ++mine.end;
      n = mine.end;
      std::int64_t touched = 0;
      for (const auto p : buckets_[b]) {
        if (!nodes.touched(p, mine)) continue;
        touched += plan_.parameters()[p].spec.count;
        bucket.bytes += plan_.bytes_of(p);
      }
      if (touched == 0) continue;
      ++bucket.messages;
      ++bucket.dense_messages;
      bucket.values += touched;
      bucket.touched += touched;
    }
    for (const auto p : buckets_[b]) {
      if (nodes.touched(p)) bucket.bytes += workers_ * plan_.bytes_of(p);
    }
    bucket.bytes_dense = bucket.bytes;
  }
}

std::string TrafficReport::table() const {
  if (steps == 0) return "nothing was sent\n";
  std::size_t width = 12;
  for (const auto& bucket : all_steps) width = std::max(width, bucket.parameters.size() + 2);
  std::string text =
      fmt::format("{:{}}{:>12}{:>12}{:>12}{:>8}{:>11}{:>9}{:>14}\n", "per step, of", width,
                  "elements", "MB dense", "MB sent", "times", "density", "dense", "residual");
  BucketTraffic sum{.parameters = "all"};
  double squares = 0;
  for (const auto& bucket : all_steps) {
    text += line_of(bucket, width, steps);
    add(sum, bucket);
    sum.elements += bucket.elements;
    squares += bucket.residual_norm * bucket.residual_norm;
  }
  sum.residual_norm = std::sqrt(squares);
  text += line_of(sum, width, steps);
  text += fmt::format("{} steps, {} collectives\n", steps, collectives);
  return text;
}

}  // namespace tutti
