#include "sync/slice_fold.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/fold_schedule.h"
#include "sync/wide_fold.h"

namespace tutti {
namespace {

/// Slices are cut at multiples of this many bytes of a bucket, so that owners share no cache line
/// and small buckets are not cut at all.
constexpr std::size_t kSliceGrain = 4096;

}  // namespace

SliceFold::SliceFold(const Plan& plan, std::vector<std::byte*> arenas,
                     std::vector<StepBoard> boards, Divisor divisor)
    : plan_(plan), arenas_(std::move(arenas)), boards_(std::move(boards)), divisor_(divisor) {}

void SliceFold::begin(std::vector<HeldNode> nodes, std::int64_t leaves) {
  const auto same_block = [](const HeldNode& a, const HeldNode& b) { return a.block == b.block; };
  if (leaves != leaves_ ||
      !std::equal(nodes.begin(), nodes.end(), nodes_.begin(), nodes_.end(), same_block)) {
    programs_.clear();
  }
  nodes_ = std::move(nodes);
  leaves_ = leaves;
  weight_ = 0;
  if (nodes_.empty()) return;
  std::vector<double> weights;
  std::vector<const void*> sources;
  for (const auto& node : nodes_) weights.push_back(node.weight);
  for (const auto& weight : weights) sources.push_back(&weight);
  void* const sum = &weight_;
  run(std::string(nodes_.size(), '1'), {.reduction = Reduction::sum,
                                        .source_type = DType::float64,
                                        .result_type = DType::float64,
                                        .sources = sources,
                                        .destinations = {&sum, 1},
                                        .count = 1});
}

bool SliceFold::touched(std::size_t parameter) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const HeldNode& node) {
    return boards_[static_cast<std::size_t>(node.worker)].slot_table(node.row)[parameter] !=
           kAbsent;
  });
}

std::size_t SliceFold::fold(std::span<const std::uint32_t> parameters, int rank) {
  std::size_t total = 0;
  std::vector<Share> shares;
  for (const auto p : parameters) {
    const auto bytes = plan_.parameters()[p].node_bytes;
    if (bytes == 0 || !touched(p)) continue;
    shares.push_back({p, total, total + bytes});
    total += bytes;
  }
  const auto size = arenas_.size();
  const auto cut = [&](std::size_t r) {
    if (r == size) return total;
    return total / kSliceGrain * r / size * kSliceGrain;
  };
  const auto mine_begin = cut(static_cast<std::size_t>(rank));
  const auto mine_end = cut(static_cast<std::size_t>(rank) + 1);
  for (const auto& share : shares) {
    const auto begin = std::max(share.begin, mine_begin);
    const auto end = std::min(share.end, mine_end);
    if (begin >= end) continue;
    const auto& entry = plan_.parameters()[share.parameter];
    const auto element = size_of(entry.node_type);
    const auto first = static_cast<std::int64_t>((begin - share.begin) / element);
    const auto last = static_cast<std::int64_t>((end - share.begin) / element);
    fold_elements(share.parameter, first, std::min(last, entry.spec.count));
  }
  return total;
}

void SliceFold::fold_elements(std::size_t parameter, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  const auto& entry = plan_.parameters()[parameter];
  const auto skip = static_cast<std::size_t>(begin) * size_of(entry.node_type);
  sources_.clear();
  destinations_.clear();
  std::string pattern(nodes_.size(), '0');
  double contributed = 0;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const auto& node = nodes_[n];
    const auto worker = static_cast<std::size_t>(node.worker);
    const auto slot = boards_[worker].slot_table(node.row)[parameter];
    if (slot == kAbsent) continue;
    pattern[n] = '1';
    sources_.push_back(arenas_[worker] + plan_.slot_offset(slot) + entry.node_offset + skip);
    if (divisor_ == Divisor::contributors)
      contributed += boards_[worker].weights(node.row)[parameter];
  }
  for (auto* arena : arenas_) {
    destinations_.push_back(arena + entry.result_offset +
                            static_cast<std::size_t>(begin) * size_of(entry.spec.dtype));
  }
  double divisor = 1;
  if (divisor_ == Divisor::weights) divisor = weight_;
  if (divisor_ == Divisor::contributors) divisor = contributed;
  run(std::move(pattern), {.reduction = Reduction::sum,
                           .source_type = entry.node_type,
                           .result_type = entry.spec.dtype,
                           .divisor = divisor,
                           .sources = sources_,
                           .destinations = destinations_,
                           .count = end - begin});
}

/// Folds the nodes that the pattern marks; `work` lacks only the program.
void SliceFold::run(std::string pattern, Fold work) {
  if (work.sources.size() > kMaxSources) return wide_fold(present(pattern), leaves_, work);
  auto found = programs_.find(pattern);
  if (found == programs_.end()) {
    auto made = FoldProgram::of_blocks(present(pattern), leaves_);
    found = programs_.emplace(std::move(pattern), std::move(made)).first;
  }
  work.program = &found->second;
  tutti::fold(work);
}

std::vector<Block> SliceFold::present(const std::string& pattern) const {
  std::vector<Block> blocks;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (pattern[n] == '1') blocks.push_back(nodes_[n].block);
  }
  return blocks;
}

}  // namespace tutti
