#include "sync/nodes/slice_fold.h"

#include <algorithm>

#include "kernels/fold_schedule.h"
#include "kernels/wide_fold.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPrograms = 4096;

}  // namespace

std::vector<ElementRange> touched_share(const NodeStore& nodes,
                                        std::span<const std::uint32_t> parameters, int rank) {
  std::vector<std::uint32_t> touched;
  for (const auto p : parameters) {
    if (nodes.plan().parameters()[p].is_partitioned() && nodes.touched(p)) touched.push_back(p);
  }
  return tile_share(nodes.plan(), touched, rank, nodes.team().size());
}

void SliceFold::fold(const NodeSources& sources, std::int64_t begin, std::int64_t end,
                     DType result_type, std::span<void* const> destinations) {
  // Threads only read what is made here.
  const bool is_wide = sources.nodes.size() > kMaxSources;
  const auto blocks = is_wide ? present(sources.pattern) : std::vector<Block>();
  auto work = work_of(sources, begin, end);
  work.result_type = result_type;
  work.destinations = destinations;
  if (!is_wide) work.program = &program_of(sources.pattern);
  const auto run = [&](const Fold& part) {
    if (is_wide) return wide_fold(blocks, nodes_.held().leaf_count(), part);
    tutti::fold(part);
  };
  in_fold_tiles(nodes_.for_tiles(), work.count,
                [&](std::int64_t begin, std::int64_t end) { run_part(work, begin, end, run); });
}

Fold SliceFold::fold_of(const NodeSources& sources, std::int64_t begin, std::int64_t end) {
  auto work = work_of(sources, begin, end);
  work.program = &program_of(sources.pattern);
  return work;
}

Fold SliceFold::work_of(const NodeSources& sources, std::int64_t begin, std::int64_t end) {
  const auto type = nodes_.plan().parameters()[sources.parameter].node_type;
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

void SliceFold::fold(std::span<const std::uint32_t> parameters) {
  std::vector<void*> destinations(nodes_.team().members.size());
  for (const auto& range : touched_share(nodes_, parameters, nodes_.team().rank)) {
    const auto type = nodes_.plan().parameters()[range.parameter].spec.dtype;
    const auto skip = static_cast<std::size_t>(range.begin) * size_of(type);
    for (std::size_t r = 0; r < destinations.size(); ++r) {
      destinations[r] = nodes_.result(nodes_.team().members[r], range.parameter) + skip;
    }
    fold(nodes_.sources_of(range.parameter), range.begin, range.end, type, destinations);
  }
}

const FoldProgram& SliceFold::program_of(const std::string& pattern) {
  if (shape_ != nodes_.held().shape()) programs_.clear();
  shape_ = nodes_.held().shape();
  const auto found = programs_.find(pattern);
  if (found != programs_.end()) return found->second;
  // Rows may be in any of the nodes.
  if (programs_.size() == kMaxPrograms) programs_.clear();
  return programs_
      .emplace(pattern, FoldProgram::of_blocks(present(pattern), nodes_.held().leaf_count()))
      .first->second;
}

std::vector<Block> SliceFold::present(const std::string& pattern) const {
  std::vector<Block> blocks;
  for (std::size_t n = 0; n < nodes_.held().size(); ++n) {
    if (pattern[n] == '1') blocks.push_back(nodes_.held()[n].block);
  }
  return blocks;
}

}  // namespace tutti
