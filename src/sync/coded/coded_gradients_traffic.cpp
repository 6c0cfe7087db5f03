// What steps with a codec cost: see coded_gradients.h.

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/norm.h"
#include "sync/coded/coded_gradients.h"

namespace tutti {

void CodedGradients::note() {
  traffic_.begin();
  max_bytes_ = 0;
  owned_bytes_ = 0;
  for (const auto p : placed_parameters(exchange_.plan())) {
    if (nodes().touched(p)) owned_bytes_ += exchange_.plan().bytes_of(p);
  }
  std::vector<std::size_t> bytes(carried_.size());
  for (std::size_t g = 0; g < board_.groups().size(); ++g) {
    auto& group = traffic_.group(g);
    touched_by_any_[g] = 0;
    for (const auto p : board_.groups()[g]) {
      const bool any = std::any_of(carried_.begin(), carried_.end(),
                                   [&](const Carried& one) { return one.touched[p] != 0; });
      if (any) touched_by_any_[g] += exchange_.plan().parameters()[p].spec.count;
    }
    for (std::size_t l = 0; l < carried_.size(); ++l) {
      const auto touched = carried_[l].elements[g];
      if (touched == 0) continue;
      const auto& header = board_.header(l, g);
      ++group.messages;
      group.dense_messages += header.is_dense;
      group.values += header.values;
      group.touched += touched;
      group.bytes += header.first_bytes + header.bytes;
      group.bytes_dense += static_cast<std::uint64_t>(touched) * sizeof(float);
      bytes[l] += header.first_bytes + header.bytes;
      max_bytes_ = std::max(max_bytes_, bytes[l]);
    }
    group.bytes_dense +=
        carried_.size() * static_cast<std::uint64_t>(touched_by_any_[g]) * sizeof(float);
  }
}

TrafficReport CodedGradients::traffic() const {
  auto report = traffic_.report();
  for (std::size_t g = 0; board_.has_residuals() && g < board_.groups().size(); ++g) {
    double total = 0;
    for (std::size_t l = 0; l < carried_.size(); ++l) {
      for (const auto p : board_.groups()[g]) {
        const auto count = exchange_.plan().parameters()[p].spec.count;
        std::vector<double> blocks(static_cast<std::size_t>((count + kNormBlock - 1) / kNormBlock));
        squares_of_blocks(board_.kept(Kept::residual, l, p), DType::float32, count, blocks);
        total += tree_sum(blocks);
      }
    }
    report.last_step[g].residual_norm = report.all_steps[g].residual_norm = std::sqrt(total);
  }
  return report;
}

void CodedGradients::commit(StepReport& report) {
  report.bytes = max_bytes_ + owned_bytes_;
  if (options_.compression.codec->has_first_round()) report.collectives = 2;
  report.bytes_dense = 0;
  for (std::size_t p = 0; p < exchange_.plan().parameters().size(); ++p) {
    report.bytes_dense += exchange_.plan().bytes_of(p);
  }
  for (std::size_t g = 0; g < board_.groups().size(); ++g) {
    const auto sums = board_.sum_values(g).load(std::memory_order_relaxed);
    const auto values = sums - std::exchange(sum_values_[g], sums);
    if (touched_by_any_[g] == 0) continue;
    traffic_.group(g).bytes +=
        carried_.size() *
        (board_.first_round(0, g).size_bytes() +
         options_.compression.codec->sum_bytes(
             touched_by_any_[g], values,
             encoder_.context_of(g, touched_by_any_[g], exchange_.last_number(), {})));
  }
  traffic_.end(options_.compression.codec->has_first_round() ? 2 : 1);
  if (!board_.has_residuals()) return;
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    for (std::size_t p = 0; p < carried_[l].touched.size(); ++p) {
      if (carried_[l].touched[p] != 0) board_.turn(l, p);
    }
  }
}

}  // namespace tutti
