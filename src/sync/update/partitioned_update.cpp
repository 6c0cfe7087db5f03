#include "sync/update/partitioned_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/fold_schedule.h"
#include "kernels/fold_update.h"
#include "kernels/norm.h"
#include "sync/update/gradient_norms.h"
#include "tutti/error.h"

namespace tutti {
namespace {

static_assert(kTile == kNormBlock, "owners hold whole blocks of a norm");

template <class Real>
void clip_values(Real* values, std::int64_t count, Real bound) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] > bound) values[i] = bound;
    if (values[i] < -bound) values[i] = -bound;
  }
}

/// Float32 or float64, kept within ±bound.
void clip_values(void* values, DType type, std::int64_t count, double bound) {
  if (type == DType::float64) return clip_values(static_cast<double*>(values), count, bound);
  clip_values(static_cast<float*>(values), count, static_cast<float>(bound));
}

}  // namespace

PartitionedUpdate::PartitionedUpdate(StepExchange& exchange, ShardBoard& board, SharedModel& model,
                                     RowGradients& rows,
                                     std::vector<std::optional<UpdateRule>> rules,
                                     TileUpdates* others, const Clip& clip, CodedGradients* coded)
    : exchange_(exchange),
      board_(board),
      model_(model),
      rows_(rows),
      rules_(exchange.plan(), std::move(rules)),
      others_(others),
      clip_(clip),
      coded_(coded),
      gradient_(kTile * sizeof(double)) {
  for (const auto p : partitioned_parameters(exchange_.plan())) {
    (rules_.has(p) ? by_kernel_ : by_others_).push_back(p);
  }
  by_owner_ = placed_parameters(exchange_.plan());
  first_block_.push_back(0);
  for (const auto& entry : exchange_.plan().parameters()) {
    std::int64_t blocks = 0;
    if (entry.row_sparse()) blocks = (entry.rows() + kRowBlock - 1) / kRowBlock;
    if (entry.is_reduced()) blocks = (entry.spec.count + kTile - 1) / kTile;
    first_block_.push_back(first_block_.back() + static_cast<std::size_t>(blocks));
  }
  norms_ = exchange_.group().allocate_common(
      std::max<std::size_t>(first_block_.back(), 1) * sizeof(double), "norms");
}

Verdict PartitionedUpdate::judge(double loss_scale) {
  Verdict verdict;
  verdict.divisor_factor = loss_scale;
  const auto facts = board_.facts();
  verdict.refusal = refusal_of(facts, exchange_.plan());
  verdict.finite = verdict.refusal.empty();
  const auto& slices = exchange_.slices();
  if (verdict.finite && slices.weight() == 0) {
    verdict.refusal = "the weights of all shards are 0";
  }
  if (!verdict.refusal.empty()) return verdict;
  if (coded_ != nullptr) {
    const auto refusal = coded_->encode(loss_scale);
    verdict.refusal = refusal.text;
    verdict.finite = !refusal.is_overflow;
    if (!verdict.refusal.empty()) return verdict;
  }
  // What messages say is finite, and so is its mean.
  const bool all_coded = coded_ != nullptr && rows_.parameters().empty() && by_owner_.empty();
  const bool as_it_comes = (all_coded || !may_overflow(facts, slices.weight() * loss_scale)) &&
                           (all_coded || slices.nodes() <= kMaxSources);
  if (!needs_norms(clip_) && as_it_comes) return verdict;
  fold_own(loss_scale);
  exchange_.barrier("the norms of its gradients in");
  verdict.folded = true;
  take_norms(verdict);
  return verdict;
}

std::vector<ElementRange> PartitionedUpdate::owned_by(int rank) const {
  auto ranges = exchange_.slices().owned(by_kernel_, rank);
  for (const auto& range :
       tile_share(exchange_.plan(), by_others_, rank, exchange_.group().size())) {
    if (exchange_.slices().touched(range.parameter)) ranges.push_back(range);
  }
  for (const auto p : by_owner_) {
    if (exchange_.owner_of(p) != rank || !exchange_.slices().touched(p)) continue;
    ranges.push_back({p, 0, exchange_.plan().parameters()[p].spec.count});
  }
  return ranges;
}

std::byte* PartitionedUpdate::folded_at(int rank, std::uint32_t parameter,
                                        std::int64_t element) const {
  const auto type = exchange_.plan().parameters()[parameter].node_type;
  return exchange_.sum_place(rank, parameter) + static_cast<std::size_t>(element) * size_of(type);
}

double* PartitionedUpdate::blocks_of(std::uint32_t parameter) const {
  return reinterpret_cast<double*>(norms_->data()) + first_block_[parameter];
}

/// The sum may take the place of the owner's own node: nobody else reads there what it owns.
void PartitionedUpdate::fold_own(double loss_scale) {
  const int rank = exchange_.group().rank();
  for (const auto& range : owned_by(rank)) {
    const auto type = exchange_.plan().parameters()[range.parameter].node_type;
    void* const to = folded_at(rank, range.parameter, range.begin);
    fold_into(range, loss_scale, to);
    const auto blocks = static_cast<std::size_t>((range.end - range.begin + kTile - 1) / kTile);
    squares_of_blocks(to, type, range.end - range.begin,
                      {blocks_of(range.parameter) + range.begin / kTile, blocks});
  }
  fold_rows(loss_scale);
}

/// From the messages, whose values then count as this owner's, or the nodes of all workers.
void PartitionedUpdate::fold_into(const ElementRange& range, double divisor_factor, void* to) {
  if (is_coded(range.parameter)) {
    coded_->count_values(range.parameter, coded_->reduce(range.parameter, range.begin, range.end,
                                                         static_cast<float*>(to)));
    return;
  }
  auto& slices = exchange_.slices();
  auto sources = slices.sources_of(range.parameter);
  sources.divisor *= divisor_factor;
  const auto type = exchange_.plan().parameters()[range.parameter].node_type;
  slices.fold(sources, range.begin, range.end, type, {&to, 1});
}

void PartitionedUpdate::take_norms(Verdict& verdict) {
  const auto& parameters = exchange_.plan().parameters();
  std::vector<std::uint32_t> touched;
  for (std::uint32_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].spec.is_per_replica && exchange_.slices().touched(p)) touched.push_back(p);
  }
  auto norms = norms_of(exchange_.plan(), clip_, touched, [&](std::uint32_t p) {
    return std::span<const double>(blocks_of(p), first_block_[p + 1] - first_block_[p]);
  });
  verdict.refusal = norms.refusal;
  verdict.finite = norms.refusal.empty();
  verdict.norm = std::sqrt(norms.squares);
  verdict.scales = std::move(norms.scales);
}

UpdateTarget PartitionedUpdate::target_of(const ElementRange& range, const Verdict& verdict) const {
  auto target = model_.target(range);
  if (!verdict.scales.empty()) target.gradient_scale = verdict.scales[range.parameter];
  target.clip_value = clip_.value;
  return target;
}

void PartitionedUpdate::apply(const Verdict& verdict, double rate_factor) {
  if (coded_ != nullptr) coded_->note_messages();
  for (const auto& range : owned_by(exchange_.group().rank())) {
    const bool has_kernel = rules_.has(range.parameter);
    if (has_kernel && (!is_coded(range.parameter) || verdict.folded)) {
      run_kernel(range, verdict, rate_factor);
      continue;
    }
    for (const auto& tile : tiles_of(range)) {
      if (has_kernel) {
        run_kernel(tile, verdict, rate_factor);
      } else {
        run_other(tile, verdict, rate_factor);
      }
    }
  }
  apply_rows(verdict, rate_factor);
}

void PartitionedUpdate::run_kernel(const ElementRange& range, const Verdict& verdict,
                                   double rate_factor) {
  auto& slices = exchange_.slices();
  static const auto one = FoldProgram::canonical(1);
  const auto p = range.parameter;
  const auto& entry = exchange_.plan().parameters()[p];
  const auto target = target_of(range, verdict);
  const void* folded = folded_at(exchange_.group().rank(), p, range.begin);
  FoldUpdate work{.fold = {}, .target = target, .update = rules_.next(p, rate_factor)};
  const bool is_message = is_coded(p);
  if (is_message && !verdict.folded) {
    fold_into(range, verdict.divisor_factor, gradient_.data());
    folded = gradient_.data();
  }
  if (is_message || verdict.folded) {
    work.fold = {.program = &one,
                 .source_type = entry.node_type,
                 .result_type = entry.node_type,
                 .sources = {&folded, 1},
                 .count = target.count};
  } else {
    auto sources = slices.sources_of(p);
    sources.divisor *= verdict.divisor_factor;
    work.fold = slices.fold_of(sources, range.begin, range.end);
  }
  if (model_.master(p) != model_.value(p)) {
    work.rounded =
        model_.value(p) + static_cast<std::size_t>(range.begin) * size_of(entry.spec.dtype);
    work.rounded_type = entry.spec.dtype;
  }
  fold_update(work);
}

void PartitionedUpdate::run_other(const ElementRange& tile, const Verdict& verdict,
                                  double rate_factor) {
  const auto p = tile.parameter;
  const auto type = exchange_.plan().parameters()[p].node_type;
  const auto count = tile.end - tile.begin;
  void* const gradient = gradient_.data();
  if (verdict.folded) {
    std::memcpy(gradient, folded_at(exchange_.group().rank(), p, tile.begin),
                static_cast<std::size_t>(count) * size_of(type));
  } else {
    fold_into(tile, verdict.divisor_factor, gradient);
  }
  const auto target = target_of(tile, verdict);
  if (target.gradient_scale != 1) {
    scale_into(gradient, type, gradient, type, count, target.gradient_scale);
  }
  if (clip_.value > 0) clip_values(gradient, type, count, clip_.value);
  others_->update(tile, gradient, rate_factor);
  model_.round_values(tile);
}

void PartitionedUpdate::commit(const std::vector<std::uint8_t>& touched) {
  if (coded_ != nullptr) coded_->commit();
  for (std::size_t p = 0; p < touched.size(); ++p) {
    if (!exchange_.plan().parameters()[p].spec.is_per_replica) rules_.updates()[p] += touched[p];
  }
}

void PartitionedUpdate::read_gradient(const Verdict& verdict, std::uint32_t parameter,
                                      std::byte* to) {
  const auto& entry = exchange_.plan().parameters()[parameter];
  if (is_coded(parameter) && !verdict.refusal.empty()) {
    // There are no messages that it could be read from.
    std::fill_n(reinterpret_cast<float*>(to), entry.spec.count,
                std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (!verdict.folded && is_coded(parameter)) {  // whoever only looks counts nothing
    coded_->reduce(parameter, 0, entry.spec.count, reinterpret_cast<float*>(to));
    return;
  }
  if (!verdict.folded) {
    return fold_into({parameter, 0, entry.spec.count}, verdict.divisor_factor, to);
  }
  for (int r = 0; r < exchange_.group().size(); ++r) {
    for (const auto& range : owned_by(r)) {
      if (range.parameter != parameter) continue;
      const auto element = size_of(entry.node_type);
      std::memcpy(to + static_cast<std::size_t>(range.begin) * element,
                  folded_at(r, parameter, range.begin),
                  static_cast<std::size_t>(range.end - range.begin) * element);
    }
  }
}

}  // namespace tutti
