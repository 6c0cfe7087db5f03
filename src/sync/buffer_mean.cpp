#include "sync/buffer_mean.h"

#include <fmt/format.h>

namespace tutti {

BufferMean::BufferMean(const Group& group, std::vector<TensorSpec> buffers,
                       std::vector<std::int64_t> cuts, const std::string& name)
    : plan_(std::move(buffers), {}),
      arena_(group.allocate(plan_.arena_bytes(kMaxSlots), fmt::format("buffers of \"{}\"", name),
                            plan_.base_bytes())),
      control_(group.allocate(StepBoard::bytes(plan_.parameters().size(), 0),
                              fmt::format("buffer board of \"{}\"", name), std::size_t{1} << 16)),
      rank_(group.rank()),
      boards_(boards_of(control_, group.size(), plan_)) {
  std::vector<std::byte*> arenas;
  for (int r = 0; r < group.size(); ++r) arenas.push_back(arena_.block(r));
  folder_ =
      std::make_unique<LeafFolder>(plan_, arena_.data(), boards_[static_cast<std::size_t>(rank_)],
                                   LeafFolder::Options{.cuts = std::move(cuts)}, nullptr);
  slices_ = std::make_unique<SliceFold>(plan_, std::move(arenas), boards_, Divisor::weights);
}

void BufferMean::open(std::int64_t first) {
  folder_->reset();
  folder_->set_start(first);
}

void BufferMean::take(std::span<const void* const> buffers) {
  folder_->begin_leaf(1);
  for (std::size_t b = 0; b < buffers.size(); ++b) folder_->write(b, buffers[b], true);
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
}

void BufferMean::meet() {
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (std::size_t r = 0; r < boards_.size(); ++r) {
    append_nodes(nodes, leaves, static_cast<int>(r), boards_[r].header());
  }
  slices_->begin(std::move(nodes), leaves);
}

void BufferMean::mean(std::size_t buffer, NodeRange nodes, void* to) {
  if (!slices_->touched(buffer, nodes)) return;
  const auto& spec = plan_.parameters()[buffer].spec;
  auto sources = slices_->sources_of(static_cast<std::uint32_t>(buffer), nodes);
  sources.divisor = slices_->weight_of(nodes);
  slices_->fold(sources, 0, spec.count, spec.dtype, {&to, 1});
}

}  // namespace tutti
