#include "sync/step/buffer_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti {

BufferMean::BufferMean(const Group& group, std::vector<TensorSpec> buffers,
                       std::vector<std::int64_t> cuts, std::size_t logical_workers,
                       const std::string& name)
    : plan_(std::move(buffers), {}),
      arena_(group.allocate(plan_.arena_bytes(kMaxSlots), fmt::format("buffers of \"{}\"", name),
                            plan_.base_bytes())),
      control_(group.allocate(StepBoard::bytes(plan_.parameters().size(), 0),
                              fmt::format("buffer board of \"{}\"", name), std::size_t{1} << 16)),
      changes_(group.allocate(logical_workers * plan_.parameters().size(),
                              fmt::format("changes of buffers of \"{}\"", name))),
      changed_(logical_workers * plan_.parameters().size()),
      rank_(group.rank()),
      boards_(boards_of(control_, group.size(), plan_)) {
  std::vector<std::byte*> arenas;
  for (int r = 0; r < group.size(); ++r) arenas.push_back(arena_.block(r));
  folder_ = std::make_unique<LeafFolder>(
      plan_, arena_.data(), boards_[static_cast<std::size_t>(rank_)],
      LeafFolder::Options{.node_boundaries = std::move(cuts)}, nullptr);
  slices_ = std::make_unique<SliceFold>(plan_, std::move(arenas), boards_, Divisor::weights);
}

void BufferMean::open(std::int64_t first) {
  folder_->reset();
  folder_->set_start(first);
  std::fill(changed_.begin(), changed_.end(), std::uint8_t{0});
}

void BufferMean::take(std::size_t logical, std::span<const void* const> buffers,
                      std::span<const void* const> before) {
  folder_->begin_leaf(1);
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    folder_->write(b, buffers[b], true);
    const auto& spec = plan_.parameters()[b].spec;
    const auto bytes = static_cast<std::size_t>(spec.count) * size_of(spec.dtype);
    auto& changed = changed_[logical * buffers.size() + b];
    if (changed == 0 && bytes > 0) changed = std::memcmp(buffers[b], before[b], bytes) != 0;
  }
  folder_->end_leaf();
}

void BufferMean::skip() {
  folder_->begin_leaf(0);
  folder_->end_leaf();
}

void BufferMean::publish() {
  auto& header = boards_[static_cast<std::size_t>(rank_)].header();
  header.leaves = folder_->leaves();
  publish_nodes(*folder_, header);
  std::memcpy(changes_.data(), changed_.data(), changed_.size());
}

void BufferMean::barrier() {
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (std::size_t r = 0; r < boards_.size(); ++r) {
    append_nodes(nodes, leaves, static_cast<int>(r), boards_[r].header());
  }
  slices_->begin(std::move(nodes), leaves);
  for (std::size_t r = 0; r < boards_.size(); ++r) {
    const auto* const theirs =
        reinterpret_cast<const std::uint8_t*>(changes_.block(static_cast<int>(r)));
    for (std::size_t i = 0; i < changed_.size(); ++i) changed_[i] |= theirs[i];
  }
}

bool BufferMean::changed(std::size_t buffer) const {
  const auto buffers = plan_.parameters().size();
  for (auto at = buffer; at < changed_.size(); at += buffers) {
    if (changed_[at] != 0) return true;
  }
  return false;
}

void BufferMean::mean(std::size_t buffer, NodeRange nodes, void* to) {
  if (!slices_->touched(buffer, nodes)) return;
  const auto& spec = plan_.parameters()[buffer].spec;
  auto sources = slices_->sources_of(static_cast<std::uint32_t>(buffer), nodes);
  sources.divisor = slices_->weight_of(nodes);
  slices_->fold(sources, 0, spec.count, spec.dtype, {&to, 1});
}

}  // namespace tutti
