#include "sync/sharded_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/fold_schedule.h"
#include "kernels/fold_update.h"
#include "kernels/norm.h"
#include "tutti/error.h"

namespace tutti {
namespace {

static_assert(kTile == kNormBlock, "owners hold whole blocks of a norm");

/// As torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

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

double clip_scale(double bound, double norm) {
  return bound > 0 ? std::min(1.0, bound / (norm + kClipEpsilon)) : 1.0;
}

}  // namespace

ShardedUpdate::ShardedUpdate(StepExchange& exchange, ShardBoard& board, SharedModel& model,
                             RowGradients& rows, std::vector<std::optional<UpdateRule>> rules,
                             TileUpdates* others, const Clip& clip, CodedGradients* coded)
    : exchange_(exchange),
      board_(board),
      model_(model),
      rows_(rows),
      rules_(std::move(rules)),
      others_(others),
      clip_(clip),
      coded_(coded),
      all_(rules_.size()),
      gradient_(kTile * sizeof(double)),
      updates_(rules_.size()) {
  std::iota(all_.begin(), all_.end(), 0U);
  for (const auto p : dense_ones(exchange_.plan())) {
    (rules_[p] ? by_kernel_ : by_others_).push_back(p);
  }
  first_block_.push_back(0);
  for (const auto& entry : exchange_.plan().parameters()) {
    const auto blocks = entry.row_sparse() ? (entry.rows() + kRowBlock - 1) / kRowBlock
                                           : (entry.spec.count + kTile - 1) / kTile;
    first_block_.push_back(first_block_.back() + static_cast<std::size_t>(blocks));
  }
  norms_ = exchange_.group().allocate_common(first_block_.back() * sizeof(double), "norms");
}

Verdict ShardedUpdate::judge(double loss_scale) {
  Verdict verdict;
  verdict.divisor_factor = loss_scale;
  verdict.refusal = find_bad_gradient();
  verdict.finite = verdict.refusal.empty();
  if (verdict.finite && exchange_.slices().weight() == 0) {
    verdict.refusal = "the weights of all shards are 0";
  }
  if (!verdict.refusal.empty()) return verdict;
  if (coded_ != nullptr) {
    const auto refusal = coded_->encode(loss_scale);
    verdict.refusal = refusal.text;
    verdict.finite = !refusal.is_overflow;
    if (!verdict.refusal.empty()) return verdict;
  }
  const bool norms = clip_.norm > 0 || clip_.parameter_norm > 0;
  // What messages say is finite, and so is its mean.
  const bool all_coded = coded_ != nullptr && rows_.parameters().empty();
  const bool as_it_comes = (all_coded || !may_overflow(loss_scale)) &&
                           (coded_ != nullptr || exchange_.slices().nodes() <= kMaxSources);
  if (!norms && as_it_comes) return verdict;
  fold_own(loss_scale);
  exchange_.meet("the norms of its gradients in");
  verdict.folded = true;
  take_norms(verdict);
  return verdict;
}

/// The earliest shard's, or "".
std::string ShardedUpdate::find_bad_gradient() const {
  const ShardHeader* bad = nullptr;
  for (int r = 0; r < board_.size(); ++r) {
    const auto& header = board_.of(r);
    if (header.bad_shard < 0) continue;
    if (bad == nullptr || header.bad_shard < bad->bad_shard) bad = &header;
  }
  if (bad == nullptr) return "";
  const auto& entry = exchange_.plan().parameters()[static_cast<std::size_t>(bad->bad_parameter)];
  return fmt::format("the gradient of \"{}\" in shard {} is not finite", entry.spec.name,
                     bad->bad_shard);
}

/// Whether a sum, or its quotient, could be beyond the range of its type. With a bound far below,
/// roundings on the way do not matter.
bool ShardedUpdate::may_overflow(double loss_scale) const {
  double bound = 0;
  for (int r = 0; r < board_.size(); ++r) bound += board_.of(r).bound;
  const double divisor = exchange_.slices().weight() * loss_scale;
  return !(bound < FLT_MAX / 2 && bound / divisor < FLT_MAX / 2);
}

std::vector<ElementRange> ShardedUpdate::owned_by(int rank) const {
  auto ranges = exchange_.slices().owned(by_kernel_, rank);
  for (const auto& range :
       tile_share(exchange_.plan(), by_others_, rank, exchange_.group().size())) {
    if (exchange_.slices().touched(range.parameter)) ranges.push_back(range);
  }
  return ranges;
}

std::byte* ShardedUpdate::folded_at(int rank, std::uint32_t parameter, std::int64_t element) const {
  const auto type = exchange_.plan().parameters()[parameter].node_type;
  return exchange_.sum_place(rank, parameter) + static_cast<std::size_t>(element) * size_of(type);
}

double* ShardedUpdate::blocks_of(std::uint32_t parameter) const {
  return reinterpret_cast<double*>(norms_->data()) + first_block_[parameter];
}

/// The sum may take the place of the owner's own node: nobody else reads there what it owns.
void ShardedUpdate::fold_own(double loss_scale) {
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
void ShardedUpdate::fold_into(const ElementRange& range, double divisor_factor, void* to) {
  if (coded_ != nullptr) {
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

void ShardedUpdate::take_norms(Verdict& verdict) {
  double total = 0;
  std::vector<double> norms(all_.size());
  for (const auto p : all_) {
    if (!exchange_.slices().touched(p)) continue;
    const double squares = tree_sum({blocks_of(p), first_block_[p + 1] - first_block_[p]});
    if (!std::isfinite(squares)) {
      verdict.refusal = fmt::format("the sum of the gradients of \"{}\" is not finite",
                                    exchange_.plan().parameters()[p].spec.name);
      verdict.finite = false;
      return;
    }
    norms[p] = std::sqrt(squares);
    total += squares;
  }
  verdict.norm = std::sqrt(total);
  if (!std::isfinite(total)) {
    verdict.refusal = "the norm of the gradient is not finite";
    verdict.finite = false;
    return;
  }
  if (clip_.norm == 0 && clip_.parameter_norm == 0) return;
  verdict.scales.resize(all_.size());
  for (const auto p : all_) {
    verdict.scales[p] =
        clip_scale(clip_.norm, *verdict.norm) * clip_scale(clip_.parameter_norm, norms[p]);
  }
}

UpdateRule ShardedUpdate::rule_for(std::uint32_t parameter, double rate_factor) const {
  const bool lists = exchange_.plan().parameters()[parameter].row_sparse();
  auto rule = *rules_[parameter];
  const auto follow_schedule = [&](auto& any) {
    any.learning_rate *= rate_factor;
    if constexpr (requires { any.shrink; }) any.shrink *= rate_factor;
  };
  std::visit(follow_schedule, rule);
  // A row's momentum begins with 0, whenever it is touched for the first time.
  if (auto* sgd = std::get_if<SgdRule>(&rule)) sgd->starts = updates_[parameter] == 0 && !lists;
  if (auto* adam = std::get_if<AdamRule>(&rule)) adam->step = updates_[parameter] + 1;
  if (auto* adagrad = std::get_if<AdagradRule>(&rule)) adagrad->step = updates_[parameter] + 1;
  return rule;
}

UpdateTarget ShardedUpdate::target_of(const ElementRange& range, const Verdict& verdict) const {
  const auto p = range.parameter;
  const auto type = exchange_.plan().parameters()[p].node_type;
  const auto skip = static_cast<std::size_t>(range.begin) * size_of(type);
  const auto state = [&](int k) {
    return k < model_.states(p) ? model_.state(p, k) + skip : nullptr;
  };
  return {.dtype = type,
          .gradient = nullptr,
          .parameter = model_.master(p) + skip,
          .first = state(0),
          .second = state(1),
          .count = range.end - range.begin,
          .gradient_scale = verdict.scales.empty() ? 1.0 : verdict.scales[p],
          .clip_value = clip_.value};
}

void ShardedUpdate::apply(const Verdict& verdict, double rate_factor) {
  if (coded_ != nullptr) coded_->note_messages();
  for (const auto& range : owned_by(exchange_.group().rank())) {
    const bool has_kernel = rules_[range.parameter].has_value();
    if (has_kernel && (coded_ == nullptr || verdict.folded)) {
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

void ShardedUpdate::run_kernel(const ElementRange& range, const Verdict& verdict,
                               double rate_factor) {
  auto& slices = exchange_.slices();
  static const auto one = FoldProgram::canonical(1);
  const auto p = range.parameter;
  const auto& entry = exchange_.plan().parameters()[p];
  const auto target = target_of(range, verdict);
  const void* folded = folded_at(exchange_.group().rank(), p, range.begin);
  FoldUpdate work{.fold = {}, .target = target, .rule = rule_for(p, rate_factor)};
  if (coded_ != nullptr && !verdict.folded) {
    fold_into(range, verdict.divisor_factor, gradient_.data());
    folded = gradient_.data();
  }
  if (coded_ != nullptr || verdict.folded) {
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

void ShardedUpdate::run_other(const ElementRange& tile, const Verdict& verdict,
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
  if (model_.master(p) != model_.value(p)) {
    model_.round_values(tile, static_cast<const std::byte*>(target.parameter));
  }
}

void ShardedUpdate::commit(const std::vector<std::uint8_t>& touched) {
  if (coded_ != nullptr) coded_->commit();
  for (std::size_t p = 0; p < updates_.size(); ++p) updates_[p] += touched[p];
}

void ShardedUpdate::read_gradient(const Verdict& verdict, std::uint32_t parameter, std::byte* to) {
  const auto& entry = exchange_.plan().parameters()[parameter];
  if (coded_ != nullptr && !verdict.refusal.empty()) {
    // There are no messages that it could be read from.
    std::fill_n(reinterpret_cast<float*>(to), entry.spec.count,
                std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (!verdict.folded && coded_ != nullptr) {  // whoever only looks counts nothing
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
