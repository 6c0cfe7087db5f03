#include "sync/step/slice_fold.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/fold_schedule.h"
#include "kernels/wide_fold.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPrograms = 4096;

}  // namespace

void append_nodes(std::vector<HeldNode>& nodes, std::int64_t& leaves, int r,
                  const StepHeader& header) {
  for (int k = 0; k < header.node_count; ++k) {
    auto block = header.nodes[k].block;
    block.begin += leaves;
    nodes.push_back({r, k, block, header.nodes[k].weight});
  }
  leaves += header.leaves;
}

double fold_weights(std::span<const Block> blocks, std::span<const double> weights,
                    std::int64_t leaves) {
  if (blocks.empty()) return 0;
  std::vector<const void*> sources;
  for (const auto& weight : weights) sources.push_back(&weight);
  double sum = 0;
  void* const to = &sum;
  wide_fold(blocks, leaves,
            {.source_type = DType::float64,
             .result_type = DType::float64,
             .sources = sources,
             .destinations = {&to, 1},
             .count = 1});
  return sum;
}

SliceFold::SliceFold(const Plan& plan, std::vector<std::byte*> arenas,
                     std::vector<StepBoard> boards, Divisor divisor)
    : plan_(plan), arenas_(std::move(arenas)), boards_(std::move(boards)), divisor_(divisor) {}

void SliceFold::begin(std::vector<HeldNode> nodes, std::int64_t leaves, bool unscaled) {
  const auto same_block = [](const HeldNode& a, const HeldNode& b) { return a.block == b.block; };
  if (leaves != leaves_ ||
      !std::equal(nodes.begin(), nodes.end(), nodes_.begin(), nodes_.end(), same_block)) {
    programs_.clear();
  }
  nodes_ = std::move(nodes);
  leaves_ = leaves;
  unscaled_ = unscaled;
  weight_ = weight_of({0, nodes_.size()});
}

double SliceFold::weight_of(NodeRange range) const {
  std::vector<Block> blocks;
  std::vector<double> weights;
  for (auto n = range.begin; n < range.end; ++n) {
    blocks.push_back(nodes_[n].block);
    weights.push_back(nodes_[n].weight);
  }
  return fold_weights(blocks, weights, leaves_);
}

bool SliceFold::touched(std::size_t parameter, NodeRange range) const {
  const auto has_it = [&](const HeldNode& node) {
    const auto& board = boards_[static_cast<std::size_t>(node.worker)];
    return board.slot_table(node.row)[parameter] != kAbsent;
  };
  const auto at = [&](std::size_t n) { return nodes_.begin() + static_cast<std::ptrdiff_t>(n); };
  return std::any_of(at(range.begin), at(range.end), has_it);
}

std::vector<ElementRange> SliceFold::owned(std::span<const std::uint32_t> parameters,
                                           int rank) const {
  std::vector<std::uint32_t> touched_ones;
  for (const auto p : parameters) {
    if (plan_.parameters()[p].is_partitioned() && touched(p)) touched_ones.push_back(p);
  }
  return tile_share(plan_, touched_ones, rank, static_cast<int>(arenas_.size()));
}

SliceFold::Sources SliceFold::sources_of(std::uint32_t parameter, NodeRange range) const {
  Sources sources{parameter, std::string(nodes_.size(), '0'), {}, 1};
  for (auto n = range.begin; n < range.end; ++n) {
    const auto& node = nodes_[n];
    const auto worker = static_cast<std::size_t>(node.worker);
    const auto slot = boards_[worker].slot_table(node.row)[parameter];
    if (slot == kAbsent) continue;
    sources.pattern[n] = '1';
    sources.nodes.push_back(arenas_[worker] + plan_.node_place(parameter, slot));
  }
  if (unscaled_) return sources;
  if (divisor_ == Divisor::weights) sources.divisor = weight_;
  if (divisor_ == Divisor::contributors) sources.divisor = contributed(parameter, range);
  return sources;
}

double SliceFold::contributed(std::uint32_t parameter, NodeRange range) const {
  std::vector<Block> blocks;
  std::vector<double> weights;
  for (auto n = range.begin; n < range.end; ++n) {
    const auto& board = boards_[static_cast<std::size_t>(nodes_[n].worker)];
    if (board.slot_table(nodes_[n].row)[parameter] == kAbsent) continue;
    blocks.push_back(nodes_[n].block);
    weights.push_back(board.weights(nodes_[n].row)[parameter]);
  }
  return fold_weights(blocks, weights, leaves_);
}

void SliceFold::fold(const Sources& sources, std::int64_t begin, std::int64_t end,
                     DType result_type, std::span<void* const> destinations) {
  auto work = without_program(sources, begin, end);
  work.result_type = result_type;
  work.destinations = destinations;
  run(sources.pattern, work);
}

Fold SliceFold::fold_of(const Sources& sources, std::int64_t begin, std::int64_t end) {
  auto work = without_program(sources, begin, end);
  work.program = &program_of(sources.pattern);
  return work;
}

Fold SliceFold::without_program(const Sources& sources, std::int64_t begin, std::int64_t end) {
  const auto type = plan_.parameters()[sources.parameter].node_type;
  const auto skip = static_cast<std::size_t>(begin) * size_of(type);
  at_.clear();
  for (const auto* node : sources.nodes) at_.push_back(node + skip);
  return {.reduction = Reduction::sum,
          .source_type = type,
          .result_type = type,
          .divisor = sources.divisor,
          .sources = at_,
          .destinations = {},
          .count = end - begin};
}

void SliceFold::fold(std::span<const std::uint32_t> parameters, int rank) {
  std::vector<void*> destinations(arenas_.size());
  for (const auto& range : owned(parameters, rank)) {
    const auto& entry = plan_.parameters()[range.parameter];
    const auto skip = static_cast<std::size_t>(range.begin) * size_of(entry.spec.dtype);
    for (std::size_t r = 0; r < arenas_.size(); ++r) {
      destinations[r] = arenas_[r] + entry.result_offset + skip;
    }
    fold(sources_of(range.parameter), range.begin, range.end, entry.spec.dtype, destinations);
  }
}

/// Folds the nodes that the pattern marks; `work` lacks only the program.
void SliceFold::run(const std::string& pattern, Fold work) {
  if (work.sources.size() > kMaxSources) return wide_fold(present(pattern), leaves_, work);
  work.program = &program_of(pattern);
  tutti::fold(work);
}

const FoldProgram& SliceFold::program_of(const std::string& pattern) {
  auto found = programs_.find(pattern);
  if (found == programs_.end()) {
    // Rows may be in any of the nodes.
    if (programs_.size() == kMaxPrograms) programs_.clear();
    found = programs_.emplace(pattern, FoldProgram::of_blocks(present(pattern), leaves_)).first;
  }
  return found->second;
}

std::vector<Block> SliceFold::present(const std::string& pattern) const {
  std::vector<Block> blocks;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (pattern[n] == '1') blocks.push_back(nodes_[n].block);
  }
  return blocks;
}

}  // namespace tutti
