#include "sync/step/buffer_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

/// Every worker folds all of them, so that other hosts receive each node.
Plan plan_of(std::vector<TensorSpec> buffers) {
  for (auto& spec : buffers) spec.is_per_replica = true;
  return {std::move(buffers), {}};
}

}  // namespace

BufferMean::BufferMean(StepMemory& memory, std::vector<TensorSpec> buffers,
                       std::vector<std::int64_t> cuts, std::size_t logical_workers,
                       int workers_per_shard, const std::string& name)
    : nodes_(memory, plan_of(std::move(buffers)),
             {.arena_label = fmt::format("buffers of \"{}\"", name),
              .node_boundaries = std::move(cuts),
              .workers_per_leaf = workers_per_shard}),
      slices_(nodes_),
      changes_(memory.add<Section<std::uint8_t>>(logical_workers * this->buffers())),
      changed_(logical_workers * this->buffers()) {}

void BufferMean::open(std::int64_t first) {
  nodes_.open();
  nodes_.leaves().set_start(first);
  std::fill(changed_.begin(), changed_.end(), std::uint8_t{0});
}

void BufferMean::take(std::size_t logical, std::span<const void* const> buffers,
                      std::span<const void* const> before) {
  nodes_.leaves().begin_leaf(1);
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b] == nullptr) continue;
    nodes_.leaves().write(b, buffers[b], true);
    const auto& spec = nodes_.plan().parameters()[b].spec;
    const auto bytes = static_cast<std::size_t>(spec.count) * size_of(spec.dtype);
    auto& changed = changed_[logical * buffers.size() + b];
    if (changed == 0 && bytes > 0) changed = std::memcmp(buffers[b], before[b], bytes) != 0;
  }
  nodes_.leaves().end_leaf();
}

void BufferMean::skip() {
  nodes_.leaves().begin_leaf(0);
  nodes_.leaves().end_leaf();
}

void BufferMean::publish() {
  nodes_.boards().mine().header().leaves = nodes_.leaves().leaves();
  nodes_.publish();
  const auto& mine = changes_.mine();
  std::ranges::copy(changed_, mine.begin());
  nodes_.send();
  changes_.memory().send({{mine.data(), mine.size()}});
}

void BufferMean::barrier() {
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (int r = 0; r < static_cast<int>(nodes_.boards().size()); r += nodes_.workers_per_leaf()) {
    append_nodes(nodes, leaves, r, nodes_.boards().of(r).header());
  }
  nodes_.collect(std::move(nodes), leaves);
  for (const auto& theirs : changes_) {
    for (std::size_t i = 0; i < changed_.size(); ++i) changed_[i] |= theirs[i];
  }
}

bool BufferMean::changed(std::size_t buffer) const {
  for (auto at = buffer; at < changed_.size(); at += buffers()) {
    if (changed_[at] != 0) return true;
  }
  return false;
}

void BufferMean::mean(std::size_t buffer, NodeRange nodes, void* to) {
  if (!nodes_.touched(buffer, nodes)) return;
  const auto& spec = nodes_.plan().parameters()[buffer].spec;
  auto sources = nodes_.sources_of(static_cast<std::uint32_t>(buffer), nodes);
  sources.divisor = nodes_.held().weight_of(nodes);
  slices_.fold(sources, 0, spec.count, spec.dtype, {&to, 1});
}

}  // namespace tutti
