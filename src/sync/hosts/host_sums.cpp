#include "sync/hosts/host_sums.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/group_state.h"
#include "job/wire/board.h"
#include "memory/arena.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{512} << 10;  ///< aimed at
constexpr std::size_t kMaxSlotBytes = std::size_t{8} << 20;
/// Subtrees of one host: a tile of each fits into the staging memory.
constexpr std::size_t kMaxSubtrees = 128;
static_assert(kMessageBytes + kMaxSubtrees * kTile * sizeof(double) <= kMaxSlotBytes);

std::int64_t tiles_in(const ElementRange& range) { return tiles_of(range.end - range.begin); }

NodeRange nodes_in(const HostSubtree& subtree) { return {subtree.begin, subtree.end}; }

/// Tiles [begin, end) of a range.
ElementRange tiles_between(const ElementRange& range, std::int64_t begin, std::int64_t end) {
  const auto at = [&](std::int64_t tile) {
    return std::min(range.end, range.begin + std::max<std::int64_t>(tile, 0) * kTile);
  };
  return {range.parameter, at(begin), at(end)};
}

}  // namespace

std::unique_ptr<HostSums> HostSums::make(StepMemory& memory, NodeStore& nodes, Options options) {
  if (!memory.group().state()->spans_hosts()) return nullptr;
  std::unique_ptr<HostSums> sums(new HostSums(memory, nodes, std::move(options)));
  sums->connect();
  return sums;
}

HostSums::HostSums(StepMemory& memory, NodeStore& nodes, Options options)
    : group_(memory.group()),
      state_(*group_.state()),
      nodes_(nodes),
      options_(std::move(options)),
      layout_(state_.layout()),
      slot_bytes_(
          std::min(kMaxSlotBytes, kMaxSubtrees * round_up(nodes.plan().slot_bytes(), kTile))),
      memory_(group_.allocate_common(
          nodes.plan().slot_bytes() +
              2 * kWindow * static_cast<std::size_t>(layout_.hosts) * slot_bytes_,
          fmt::format("sums of hosts of \"{}\"", options_.name))),
      words_(memory.add_common<Section<Words>>().data()),
      slices_(nodes),
      lists_(state_, link_, kLists),
      pieces_given_(state_, link_, kPieces),
      link_(state_, {.name = options_.name, .lanes = kLanes, .deadline = options_.deadline}) {
  std::vector<HostPipeline::Counters*> counters;
  for (int m = 0; m < layout_.team.size(); ++m) counters.push_back(&words_->members[m]);
  pipeline_.emplace(state_.job(), layout_, state_.ranks(), link_, std::move(counters),
                    HostPipeline::Options{.nodes = kNodes, .sums = kSums});
  places_.resize(nodes.plan().parameters().size());
  std::vector<std::uint8_t> summed;
  for (std::uint32_t p = 0; p < nodes.plan().parameters().size(); ++p) {
    summed.push_back(nodes.plan().parameters()[p].is_reduced() && options_.wanted(p) ? 1 : 0);
  }
  if (!summed.empty()) nodes_.take_sums(sum_at(0), std::move(summed));
}

void HostSums::open(std::uint64_t step) {
  step_ = step;
  pieces_.clear();
  pipeline_->restart(step << 32);
  closed_ = posted_lists_ = false;
}

std::byte* HostSums::staging(bool out, std::uint64_t piece, int host) const {
  const auto slot =
      ((out ? 0 : kWindow) + piece % kWindow) * static_cast<std::size_t>(layout_.hosts) +
      static_cast<std::size_t>(host);
  return memory_.data() + nodes_.plan().slot_bytes() + slot * slot_bytes_;
}

std::byte* HostSums::sum_at(std::uint32_t parameter) const {
  return memory_.data() + nodes_.plan().parameters()[parameter].node_offset;
}

void HostSums::find_subtrees() {
  if (shape_ == nodes_.held().shape()) return;
  subtrees_.clear();
  most_subtrees_ = 1;
  for (int place = 0; place < nodes_.workers_per_leaf(); ++place) {
    std::vector<Block> nodes;
    std::vector<int> hosts;
    for (const auto& node : nodes_.held()) {
      nodes.push_back(node.block);
      hosts.push_back(state_.host_of(node.worker + place));
    }
    const auto& subtrees =
        subtrees_.emplace_back(host_subtrees(nodes, hosts, nodes_.held().leaf_count()));
    for (int host = 0; host < layout_.hosts; ++host) {
      most_subtrees_ = std::max(most_subtrees_, static_cast<std::size_t>(std::ranges::count(
                                                    subtrees, host, &HostSubtree::host)));
    }
  }
  if (most_subtrees_ > kMaxSubtrees) {
    throw Unsupported(fmt::format(
        "the shards of \"{}\" alternate between hosts, so that one of them has {} parts of the sum "
        "and not at most {}: give the workers of a host consecutive ranks",
        options_.name, most_subtrees_, kMaxSubtrees));
  }
  shape_ = nodes_.held().shape();
}

void HostSums::add(std::span<const std::uint32_t> parameters) {
  find_subtrees();
  std::vector<std::uint32_t> touched;
  std::size_t bytes = 0;
  for (const auto p : parameters) {
    if (!nodes_.is_summed(p) || !nodes_.touched(p)) continue;
    touched.push_back(p);
    places_[p] = nodes_.place_of(p);
    bytes += nodes_.plan().parameters()[p].node_bytes;
  }
  std::ranges::sort(touched);  // as they lie in memory
  if (bytes == 0) return;
  const auto whole = kMessageBytes * static_cast<std::size_t>(layout_.hosts);
  const auto pieces = static_cast<int>((bytes * most_subtrees_ + whole - 1) / whole);
  for (int k = 0; k < pieces; ++k) {
    auto& slices = pieces_.emplace_back();
    for (int host = 0; host < layout_.hosts; ++host) {
      slices.push_back({.ranges = tile_share(nodes_.plan(), touched, k * layout_.hosts + host,
                                             pieces * layout_.hosts),
                        .message_bytes = {}});
    }
  }
  pipeline_->add(static_cast<std::uint64_t>(pieces));
}

void HostSums::close() { closed_ = true; }

/// Of the tiles of a slice, counted over all its ranges, each worker of this host has a share.
void HostSums::visit_parts(Slice& slice, const PartsVisit& visit) const {
  std::int64_t tiles = 0;
  for (const auto& range : slice.ranges) tiles += tiles_in(range);
  const auto& team = layout_.team;
  const auto begin = tiles * team.rank / team.size();
  const auto end = tiles * (team.rank + 1) / team.size();
  auto& bytes = slice.message_bytes;
  bytes.assign(static_cast<std::size_t>(layout_.hosts), 0);
  std::vector<Part> parts;
  std::int64_t first = 0;
  for (const auto& range : slice.ranges) {
    const auto mine = tiles_between(range, begin - first, end - first);
    first += tiles_in(range);
    parts.clear();
    for (const auto& subtree : subtrees_of(range.parameter)) {
      if (!nodes_.touched(range.parameter, nodes_in(subtree))) continue;
      auto& offset = bytes[static_cast<std::size_t>(subtree.host)];
      parts.push_back({&subtree, offset + bytes_before(mine) - bytes_before(range)});
      offset += bytes_of(range);
    }
    if (visit && mine.begin < mine.end) visit(mine, parts);
  }
}

/// What becomes this host's message to each other.
void HostSums::fold(std::uint64_t piece) {
  for (int host = 0; host < layout_.hosts; ++host) {
    if (host == layout_.here) continue;
    visit_parts(slice_of(piece, host), [&](const ElementRange& mine, std::span<const Part> parts) {
      for (const auto& [subtree, offset] : parts) {
        if (subtree->host != layout_.here) continue;
        void* const to = staging(true, piece, host) + offset;
        slices_.fold(nodes_.nodes_of(mine.parameter, nodes_in(*subtree)), mine.begin, mine.end,
                     type_of(mine.parameter), {&to, 1});
      }
    });
  }
}

/// This host's own nodes, and the sums of other hosts'.
void HostSums::sum(std::uint64_t piece) {
  const auto add_up = [&](const ElementRange& mine, std::span<const Part> parts) {
    auto sources = nodes_.nodes_of(mine.parameter, {0, 0});
    for (const auto& [subtree, offset] : parts) {
      if (subtree->host != layout_.here) {
        // Any of the subtree's leaves has its place in the tree over the others.
        sources.pattern[subtree->begin] = '1';
        sources.nodes.push_back(staging(false, piece, subtree->host) + offset - bytes_before(mine));
        continue;
      }
      const auto own = nodes_.nodes_of(mine.parameter, nodes_in(*subtree));
      for (auto n = subtree->begin; n < subtree->end; ++n) sources.pattern[n] = own.pattern[n];
      sources.nodes.insert(sources.nodes.end(), own.nodes.begin(), own.nodes.end());
    }
    void* const to = sum_at(mine.parameter) + bytes_before(mine);
    slices_.fold(sources, mine.begin, mine.end, type_of(mine.parameter), {&to, 1});
  };
  visit_parts(slice_of(piece, layout_.here), add_up);
}

void HostSums::visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) {
  auto& slice = slice_of(piece, to);
  if (slice.message_bytes.empty()) visit_parts(slice, {});
  const auto bytes = slice.message_bytes[static_cast<std::size_t>(from)];
  const bool is_own = from == layout_.here;
  if (bytes > 0) visit({staging(is_own, piece, is_own ? to : from), bytes});
}

/// Sums that are neighbours in memory are one message.
void HostSums::visit_sums(std::uint64_t piece, int from, int /*to*/, const Visit& visit) {
  std::span<std::byte> run;
  for (const auto& range : slice_of(piece, from).ranges) {
    auto* const begin = sum_at(range.parameter) + bytes_before(range);
    const auto* const end = run.data() + run.size();
    if (!run.empty() && begin - end < static_cast<std::ptrdiff_t>(kCacheLine)) {
      run = {run.data(), begin + bytes_of(range)};
      continue;
    }
    if (!run.empty()) visit(run);
    run = {begin, bytes_of(range)};
  }
  if (!run.empty()) visit(run);
}

bool HostSums::progress() {
  const bool drives = layout_.drives() && link_.is_connected();
  if (drives) link_.check();
  if (drives && closed_ && !posted_lists_) post_lists();
  while (pipeline_->advance(*this)) {
  }
  const bool is_finished = words_->finished.load(std::memory_order_acquire) == step_;
  if (is_finished || !posted_lists_ || !lists_.are_done() || !pipeline_->is_gathered()) {
    return is_finished;
  }
  words_->finished.store(step_, std::memory_order_release);
  announce(state_.job().board());
  return true;
}

/// All lists of rows, whose lengths have come with the step, and nodes that become messages.
void HostSums::post_lists() {
  std::vector<HostPiece> lists;
  for (std::uint32_t p = 0; p < nodes_.plan().parameters().size(); ++p) {
    if (nodes_.is_summed(p)) continue;
    for (const auto& node : nodes_.held()) {
      for (const auto part : nodes_.parts_of(node, p)) {
        lists.push_back({nodes_.worker_of(node, p), part.data(), part.size()});
      }
    }
  }
  lists_.post(lists);
  posted_lists_ = true;
}

/// Neighbours that are behind this worker; else all of other hosts. Two workers are never behind
/// one another: what the host's workers wait for together is on other hosts. In a step of lists
/// alone nobody folds a piece.
RankSet HostSums::missing() const {
  const auto folded = pipeline_->through(HostPipeline::kFolded);
  const auto behind = pipeline_->behind(HostPipeline::kFolded, folded);
  if (!behind.empty()) return behind;
  RankSet elsewhere;
  for (int r = 0; r < group_.size(); ++r) {
    if (state_.host_of(r) != layout_.here) elsewhere.insert(group_.job_rank(r));
  }
  return elsewhere;
}

}  // namespace tutti
