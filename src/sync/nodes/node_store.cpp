#include "sync/nodes/node_store.h"

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

/// How many tables of a worker others read. One without a node has the place of a leaf, whose table
/// is the first; so has one that has not published its one node.
int tables_of(const StepBoard& board, bool is_published) {
  return is_published ? std::max(board.header().node_count, 1) : 1;
}

}  // namespace

NodeStore::NodeStore(StepMemory& memory, Plan plan, Options options)
    : plan_(std::move(plan)),
      divisor_(options.divisor),
      memory_(memory),
      stays_(std::move(options.stays)),
      for_tiles_(std::move(options.for_tiles)),
      workers_per_leaf_(options.workers_per_leaf),
      team_(memory.group().state()->team()),
      arena_(memory.group().allocate(plan_.arena_bytes(kMaxSlots), options.arena_label,
                                     plan_.base_bytes())),
      boards_(memory.add<StepBoard>(plan_.parameters().size(), plan_.buffers().size(),
                                    options.modules)),
      leaves_(plan_, arena_.data(), boards_.mine(),
              {.per_parameter_weights = options.divisor == Divisor::contributors,
               .reports_magnitude = options.reports_magnitude,
               .node_boundaries = std::move(options.node_boundaries)},
              std::move(options.before_slot), std::move(options.before_list)),
      entries_(plan_.parameters().size(), Entry::unsent) {}

NodeStore::Part NodeStore::part_of(const HeldNode& node, std::size_t parameter) const {
  for (int r = node.worker; r < node.worker + workers_per_leaf_; ++r) {
    const auto slot = boards_.of(r).slot_table(node.row)[parameter];
    if (slot != kAbsent) return {r, slot};
  }
  return {node.worker, kAbsent};
}

int NodeStore::place_of(std::size_t parameter) const {
  if (workers_per_leaf_ == 1) return 0;
  for (const auto& node : held_) {
    const auto part = part_of(node, parameter);
    if (part.slot != kAbsent) return part.worker - node.worker;
  }
  return 0;
}

void NodeStore::open(std::optional<std::int64_t> leaves) {
  leaves_.reset(leaves);
  is_published_ = nodes_sent_ = false;
  entries_.assign(plan_.parameters().size(), Entry::unsent);
}

void NodeStore::publish() {
  if (std::exchange(is_published_, true)) return;
  publish_nodes(leaves_, boards_.mine().header());
}

void NodeStore::append_nodes_once(std::vector<PublishedData>& data) {
  if (!is_published_ || std::exchange(nodes_sent_, true)) return;
  const auto& mine = boards_.mine().header();
  const auto* const begin = reinterpret_cast<const std::byte*>(&mine.node_count);
  const auto* const end = reinterpret_cast<const std::byte*>(mine.nodes + mine.node_count);
  data.push_back(published(mine.leaves));
  data.push_back({begin, static_cast<std::size_t>(end - begin)});
}

void NodeStore::send_entries(std::span<const std::uint32_t> parameters) {
  if (!memory_.job().spans_hosts()) return;
  const auto leave = [&](Entry entry) {
    // Lists of rows are merged at the end of their leaf, and nothing is summed of them before.
    for (const auto p : parameters) {
      if (!plan_.parameters()[p].row_sparse()) entries_[p] = entry;
    }
  };
  leave(Entry::leaving);
  std::vector<PublishedData> data;
  append_nodes_once(data);
  const int tables = tables_of(boards_.mine(), is_published_);
  for (int k = 0; k < tables; ++k) {
    append_tables(data, k, [&](std::size_t p) { return entries_[p] == Entry::leaving; });
  }
  leave(Entry::sent);
  memory_.send(data);
}

void NodeStore::send() {
  if (!memory_.job().spans_hosts()) return;
  const auto& mine = boards_.mine().header();
  const auto parameters = plan_.parameters().size();
  std::vector<PublishedData> data = {published(mine.arrived, mine.first_look)};
  append_nodes_once(data);
  const int tables = tables_of(boards_.mine(), is_published_);
  for (int k = 0; k < tables; ++k) {
    append_tables(data, k, [&](std::size_t p) { return entries_[p] == Entry::unsent; });
  }
  for (int k = 0; k < mine.node_count; ++k) {
    for (std::uint32_t p = 0; p < parameters; ++p) {
      const auto slot = boards_.mine().slot_table(k)[p];
      if (slot == kAbsent || is_summed(p)) continue;
      auto* const at = place(rank(), p, slot);
      const auto& entry = plan_.parameters()[p];
      if (!entry.row_sparse()) {
        if (entry.is_partitioned()) continue;  // HostSums sends them where it needs them
        if (stays_ && stays_(entry, rank(), mine.nodes[k].block.begin)) continue;
        data.push_back({at, entry.node_bytes});
        continue;
      }
      data.push_back({at, sizeof(std::uint64_t)});  // the list itself is HostSums' business
    }
  }
  memory_.send(data);
}

void NodeStore::append_tables(std::vector<PublishedData>& data, int node,
                              const std::function<bool(std::size_t)>& wanted) const {
  const auto parameters = plan_.parameters().size();
  for (std::size_t begin = 0, end = 0; begin < parameters; begin = end + 1) {
    for (end = begin; end < parameters && wanted(end);) ++end;
    data.push_back({boards_.mine().slot_table(node) + begin, end - begin});
    if (divisor_ == Divisor::contributors) {
      data.push_back({boards_.mine().weights(node) + begin, (end - begin) * sizeof(double)});
    }
  }
}

void NodeStore::take_sums(const std::byte* sums, std::vector<std::uint8_t> summed) {
  sums_ = sums;
  summed_ = std::move(summed);
}

std::vector<std::span<std::byte>> NodeStore::parts_of(const HeldNode& node,
                                                      std::uint32_t parameter) const {
  const auto part = part_of(node, parameter);
  if (part.slot == kAbsent || is_summed(parameter)) return {};
  const auto& entry = plan_.parameters()[parameter];
  auto* const at = place(part.worker, parameter, part.slot);
  if (!entry.row_sparse()) {
    const auto leaf = boards_.of(part.worker).header().nodes[node.row].block.begin;
    const bool goes = entry.is_partitioned() && !(stays_ && stays_(entry, part.worker, leaf));
    return goes ? std::vector{std::span(at, entry.node_bytes)}
                : std::vector<std::span<std::byte>>();
  }
  const auto list = RowRoom(at, entry).list();
  if (list.rows.empty()) return {};
  const auto from_begin = [at](const void* inner) {
    return at + (static_cast<const std::byte*>(inner) - at);
  };
  return {{from_begin(list.rows.data()), list.rows.size_bytes()},
          {from_begin(list.values), list.rows.size() * row_bytes_of(entry)}};
}

void NodeStore::collect(std::vector<HeldNode> nodes, std::int64_t leaves, bool unscaled) {
  held_.collect(std::move(nodes), leaves);
  unscaled_ = unscaled;
}

double NodeStore::contributed(std::uint32_t parameter, NodeRange range) const {
  std::vector<Block> blocks;
  std::vector<double> weights;
  for (const auto& node : held_.of(range)) {
    const auto part = part_of(node, parameter);
    if (part.slot == kAbsent) continue;
    blocks.push_back(node.block);
    weights.push_back(boards_.of(part.worker).weights(node.row)[parameter]);
  }
  return fold_weights(blocks, weights, held_.leaf_count());
}

bool NodeStore::touched(std::size_t parameter, NodeRange range) const {
  return std::ranges::any_of(held_.of(range), [&](const HeldNode& node) {
    return part_of(node, parameter).slot != kAbsent;
  });
}

NodeSources NodeStore::nodes_of(std::uint32_t parameter, NodeRange range) const {
  NodeSources sources{parameter, std::string(held_.size(), '0'), {}, 1};
  for (auto n = range.begin; n < range.end; ++n) {
    const auto part = part_of(held_[n], parameter);
    if (part.slot == kAbsent) continue;
    sources.pattern[n] = '1';
    sources.nodes.push_back(place(part.worker, parameter, part.slot));
  }
  return sources;
}

double NodeStore::divisor_of(std::uint32_t parameter, NodeRange range) const {
  if (unscaled_ || divisor_ == Divisor::none) return 1;
  return divisor_ == Divisor::weights ? held_.weight() : contributed(parameter, range);
}

NodeSources NodeStore::sources_of(std::uint32_t parameter, NodeRange range) const {
  auto sources = nodes_of(parameter, range);
  sources.divisor = divisor_of(parameter, range);
  return sources;
}

NodeSources NodeStore::sources_of(std::uint32_t parameter) const {
  if (!is_summed(parameter) || !touched(parameter)) return sources_of(parameter, held_.all());
  const auto* const at = sums_ + plan_.parameters()[parameter].node_offset;
  NodeSources sum{parameter, std::string(held_.size(), '0'), {at}, 1};
  sum.pattern.front() = '1';
  sum.divisor = divisor_of(parameter, held_.all());
  return sum;
}

}  // namespace tutti
