#include "sync/step/buffer_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "job/publish.h"

namespace tutti {

BufferMean::BufferMean(const Group& group, std::vector<TensorSpec> buffers,
                       std::vector<std::int64_t> cuts, std::size_t logical_workers,
                       int workers_per_shard, const std::string& name)
    : job_(&group.state()->job()),
      nodes_(group, Plan(std::move(buffers), {}),
             {.arena_label = fmt::format("buffers of \"{}\"", name),
              .board_label = fmt::format("buffer board of \"{}\"", name),
              .node_boundaries = std::move(cuts),
              .workers_per_leaf = workers_per_shard}),
      slices_(nodes_),
      changes_(group.allocate(logical_workers * this->buffers(),
                              fmt::format("changes of buffers of \"{}\"", name))),
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
  nodes_.board().header().leaves = nodes_.leaves().leaves();
  nodes_.publish();
  std::memcpy(changes_.data(), changed_.data(), changed_.size());
  nodes_.send();
  send_ahead(*job_, {{changes_.data(), changed_.size()}});
}

void BufferMean::barrier() {
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (int r = 0; r < nodes_.workers(); r += nodes_.workers_per_leaf()) {
    append_nodes(nodes, leaves, r, nodes_.board_of(r).header());
  }
  nodes_.collect(std::move(nodes), leaves);
  for (int r = 0; r < nodes_.workers(); ++r) {
    const auto* const theirs = reinterpret_cast<const std::uint8_t*>(changes_.block(r));
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
  sources.divisor = nodes_.weight_of(nodes);
  slices_.fold(sources, 0, spec.count, spec.dtype, {&to, 1});
}

}  // namespace tutti
