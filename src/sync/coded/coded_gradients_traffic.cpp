// What steps with a codec cost: see coded_gradients.h.

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/norm.h"
#include "sync/coded/coded_gradients.h"

namespace tutti {

/// Whether some logical worker touched it.
bool CodedGradients::is_touched(std::uint32_t parameter) const {
  return std::any_of(carried_.begin(), carried_.end(),
                     [&](const Carried& one) { return one.touched[parameter] != 0; });
}

void CodedGradients::note() {
  if (board_.has_residuals()) note_squares();
  traffic_.begin();
  max_bytes_ = 0;
  owned_bytes_ = 0;
  for (const auto p : placed_parameters(exchange_.plan())) {
    if (nodes().touched(p)) owned_bytes_ += exchange_.plan().bytes_of(p);
  }
  std::vector<std::size_t> bytes(carried_.size());
  for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
    auto& bucket = traffic_.bucket(b);
    touched_by_any_[b] = 0;
    for (const auto p : board_.buckets()[b]) {
      if (is_touched(p)) touched_by_any_[b] += count_of(p);
    }
    for (std::size_t l = 0; l < carried_.size(); ++l) {
      const auto touched = carried_[l].elements[b];
      if (touched == 0) continue;
      const auto& header = board_.header(l, b);
      ++bucket.messages;
      bucket.dense_messages += header.is_dense;
      bucket.values += header.values;
      bucket.touched += touched;
      bucket.bytes += header.bytes;
      bucket.bytes_dense += static_cast<std::uint64_t>(touched) * sizeof(float);
      bytes[l] += header.bytes;
      max_bytes_ = std::max(max_bytes_, bytes[l]);
    }
    bucket.bytes_dense +=
        carried_.size() * static_cast<std::uint64_t>(touched_by_any_[b]) * sizeof(float);
  }
}

TrafficReport CodedGradients::traffic() const {
  auto report = traffic_.report();
  for (std::size_t b = 0; board_.has_residuals() && b < board_.buckets().size(); ++b) {
    double total = 0;
    for (std::size_t l = 0; l < carried_.size(); ++l) {
      total += spans_hosts_ ? squares_[l][b] : kept_squares({.logical = l, .bucket = b});
    }
    report.last_step[b].residual_norm = report.all_steps[b].residual_norm = std::sqrt(total);
  }
  return report;
}

/// Σ x² of the bucket's residuals, of what the task has touched as it will be.
double CodedGradients::kept_squares(const MessageTask& task) const {
  double total = 0;
  for (const auto p : board_.buckets()[task.bucket]) {
    const bool is_new = std::ranges::find(task.touched, p) != task.touched.end();
    const auto* const residual = is_new ? board_.next(Kept::residual, task.logical, p)
                                        : board_.kept(Kept::residual, task.logical, p);
    std::vector<double> blocks(
        static_cast<std::size_t>((count_of(p) + kNormBlock - 1) / kNormBlock));
    squares_of_blocks(residual, DType::float32, count_of(p), blocks);
    total += tree_sum(blocks);
  }
  return total;
}

std::size_t CodedGradients::sum_bytes_of(std::size_t bucket, std::int64_t values) const {
  const auto of = [&](std::int64_t count, std::int64_t present) {
    return options_.compression.codec->sum_bytes(
        count, present, encoder_.context_of(count, exchange_.protocol().last_number()));
  };
  if (!works_in_tiles(options_.compression)) return of(touched_by_any_[bucket], values);
  std::size_t bytes = 0;
  for (const auto p : board_.buckets()[bucket]) {
    if (is_touched(p) && count_of(p) > 0) bytes += of(count_of(p), count_of(p));
  }
  return bytes;
}

void CodedGradients::commit(StepReport& report) {
  report.max_sent_bytes = max_bytes_ + owned_bytes_;
  report.dense_bytes = 0;
  for (std::size_t p = 0; p < exchange_.plan().parameters().size(); ++p) {
    report.dense_bytes += exchange_.plan().bytes_of(p);
  }
  for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
    const auto sums = board_.sum_values(b).load(std::memory_order_relaxed);
    const auto values = sums - std::exchange(sum_values_[b], sums);
    if (touched_by_any_[b] == 0) continue;
    traffic_.bucket(b).bytes += carried_.size() * sum_bytes_of(b, values);
  }
  traffic_.end();
  if (!board_.has_residuals()) return;
  note_homes();
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    for (std::size_t p = 0; p < carried_[l].touched.size(); ++p) {
      if (carried_[l].touched[p] != 0) board_.turn(l, p);
    }
  }
}

}  // namespace tutti
