// The rows of row-sparse parameters in an update: see partitioned_update.h.

#include "kernels/norm.h"
#include "sync/update/partitioned_update.h"

namespace tutti {

void PartitionedUpdate::fold_rows(double loss_scale) {
  rows_.fold_own(loss_scale);
  for (const auto p : rows_.parameters()) {
    if (!exchange_.slices().touched(p)) continue;
    rows_.squares(p, {blocks_of(p), first_block_[p + 1] - first_block_[p]});
  }
}

void PartitionedUpdate::apply_rows(const Verdict& verdict, double rate_factor) {
  for (const auto p : rows_.parameters()) {
    if (!exchange_.slices().touched(p)) {
      rows_.own_touched(p, 0);
      continue;
    }
    const auto by = rules_.next(p, rate_factor);
    const auto take = [&](const RowList& list) { update_rows(p, by, verdict, list); };
    if (verdict.folded) {
      take(rows_.folded(exchange_.group().rank(), p));
    } else {
      rows_.own_touched(p, rows_.fold(p, rows_.owned(p), verdict.divisor_factor, take));
    }
  }
  rows_.note();
}

/// Neighbouring rows lie together in the parameter, in its state, and here.
void PartitionedUpdate::update_rows(std::uint32_t parameter, const PreparedUpdate& by,
                                    const Verdict& verdict, const RowList& list) {
  const auto& rows = list.rows;
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto elements = entry.row_elements();
  for (std::size_t k = 0; k < rows.size();) {
    std::size_t run = 1;
    while (k + run < rows.size() && rows[k + run] == rows[k] + run) ++run;
    const auto begin = static_cast<std::int64_t>(rows[k]) * elements;
    const ElementRange range{parameter, begin, begin + static_cast<std::int64_t>(run) * elements};
    auto target = target_of(range, verdict);
    target.gradient = list.values + k * row_bytes_of(entry);
    update(by, target);
    model_.round_values(range);
    k += run;
  }
}

double PartitionedUpdate::squares_of_rows(const Verdict& verdict, std::uint32_t parameter) {
  std::vector<double> blocks(first_block_[parameter + 1] - first_block_[parameter]);
  read_rows(verdict, parameter, [&](const RowList& list) {
    add_squares(exchange_.plan().parameters()[parameter], list, blocks);
  });
  return tree_sum(blocks);
}

void PartitionedUpdate::read_rows(const Verdict& verdict, std::uint32_t parameter,
                                  const RowGradients::Take& take) {
  const auto rows = exchange_.plan().parameters()[parameter].rows();
  if (!verdict.folded) {
    rows_.fold(parameter, {0, rows}, verdict.divisor_factor, take);
    return;
  }
  for (int r = 0; r < exchange_.group().size(); ++r) take(rows_.folded(r, parameter));
}

}  // namespace tutti
