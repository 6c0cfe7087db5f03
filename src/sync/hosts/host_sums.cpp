#include "sync/hosts/host_sums.h"

#include <algorithm>
#include <map>
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
constexpr std::size_t kMaxBlocks = 128;
static_assert(kMessageBytes + kMaxBlocks * kTile * sizeof(double) <= kMaxSlotBytes);
std::int64_t tiles_in(const ElementRange& range) {
  return (range.end - range.begin + kTile - 1) / kTile;
}

NodeRange nodes_in(const HostSubtree& subtree) { return {subtree.begin, subtree.end}; }

/// The part of a range, whose first tile is number `first`, that lies in tiles [begin, end).
ElementRange within(const ElementRange& range, std::int64_t first, std::int64_t begin,
                    std::int64_t end) {
  const auto from = range.begin + std::max<std::int64_t>(begin - first, 0) * kTile;
  const auto to = std::min(range.end, range.begin + (end - first) * kTile);
  return {range.parameter, from, std::max(from, to)};
}

}  // namespace

std::unique_ptr<HostSums> HostSums::make(const Group& group, NodeStore& nodes, Options options) {
  if (!group.state()->spans_hosts()) return nullptr;
  std::unique_ptr<HostSums> sums(new HostSums(group, nodes, std::move(options)));
  sums->connect();
  return sums;
}

HostSums::HostSums(const Group& group, NodeStore& nodes, Options options)
    : group_(group),
      state_(*group_.state()),
      nodes_(nodes),
      options_(std::move(options)),
      hosts_(state_.hosts()),
      here_(state_.host_of(group_.rank())),
      slot_bytes_(std::min(kMaxSlotBytes, kMaxBlocks * round_up(nodes.plan().slot_bytes(), kTile))),
      memory_(
          group_.allocate_common(kWordBytes + nodes.plan().slot_bytes() +
                                     2 * kWindow * static_cast<std::size_t>(hosts_) * slot_bytes_,
                                 fmt::format("sums of hosts of \"{}\"", options_.name))),
      words_(reinterpret_cast<Words*>(memory_.data())),
      slices_(nodes),
      pieces_given_(state_, link_, kPieces),
      link_(state_, {.name = options_.name, .lanes = kLanes, .deadline = options_.deadline}) {
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
  closed_ = posted_lists_ = false;
  filled_ = reduced_ = posted_in_ = posted_out_ = posted_sums_ = 0;
}

std::size_t HostSums::least(std::atomic<std::uint64_t> Progress::*word) const {
  std::size_t least = pieces_.size();
  for (int m = 0; m < team().size(); ++m) {
    const auto value = (words_->members[m].*word).load(std::memory_order_acquire);
    if (value < tag(0)) return 0;
    least = std::min(least, static_cast<std::size_t>(value - tag(0)));
  }
  return least;
}

std::byte* HostSums::staging(bool out, std::size_t piece, int host) const {
  const auto slot = ((out ? 0 : kWindow) + piece % kWindow) * static_cast<std::size_t>(hosts_) +
                    static_cast<std::size_t>(host);
  return memory_.data() + kWordBytes + nodes_.plan().slot_bytes() + slot * slot_bytes_;
}

std::byte* HostSums::sum_at(std::uint32_t parameter) const {
  return memory_.data() + kWordBytes + nodes_.plan().parameters()[parameter].node_offset;
}

void HostSums::find_blocks() {
  if (shape_ == nodes_.shape()) return;
  blocks_.clear();
  most_blocks_ = 1;
  for (int place = 0; place < nodes_.workers_per_leaf(); ++place) {
    std::vector<Block> nodes;
    std::vector<int> hosts;
    for (const auto& node : nodes_.held()) {
      nodes.push_back(node.block);
      hosts.push_back(state_.host_of(node.worker + place));
    }
    const auto& blocks = blocks_.emplace_back(host_subtrees(nodes, hosts, nodes_.leaf_count()));
    for (int host = 0; host < hosts_; ++host) {
      most_blocks_ =
          std::max(most_blocks_,
                   static_cast<std::size_t>(std::ranges::count(blocks, host, &HostSubtree::host)));
    }
  }
  if (most_blocks_ > kMaxBlocks) {
    throw Unsupported(fmt::format(
        "the shards of \"{}\" alternate between hosts, so that one of them has {} parts of the sum "
        "and not at most {}: give the workers of a host consecutive ranks",
        options_.name, most_blocks_, kMaxBlocks));
  }
  shape_ = nodes_.shape();
}

void HostSums::add(std::span<const std::uint32_t> parameters) {
  find_blocks();
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
  const auto whole = kMessageBytes * static_cast<std::size_t>(hosts_);
  const auto pieces = static_cast<int>((bytes * most_blocks_ + whole - 1) / whole);
  for (int k = 0; k < pieces; ++k) {
    auto& piece = pieces_.emplace_back();
    for (int host = 0; host < hosts_; ++host) {
      piece.slices.push_back(
          tile_share(nodes_.plan(), touched, k * hosts_ + host, pieces * hosts_));
    }
  }
}

void HostSums::close() { closed_ = true; }

HostSums::TilePart HostSums::own_part(const std::vector<ElementRange>& slice) const {
  std::int64_t tiles = 0;
  for (const auto& range : slice) tiles += tiles_in(range);
  return {tiles * team().rank / team().size(), tiles * (team().rank + 1) / team().size()};
}

std::vector<ElementRange> HostSums::clipped(const std::vector<ElementRange>& slice,
                                            TilePart part) const {
  std::vector<ElementRange> ranges;
  std::int64_t first = 0;
  for (const auto& range : slice) {
    const auto inside = within(range, first, part.begin, part.end);
    if (inside.begin < inside.end) ranges.push_back(inside);
    first += tiles_in(range);
  }
  return ranges;
}

std::size_t HostSums::visit(const std::vector<ElementRange>& slice, int host,
                            std::optional<TilePart> part, const Visit& visit) const {
  std::size_t offset = 0;
  for (int place = 0; place < nodes_.workers_per_leaf(); ++place) {
    for (const auto& block : blocks_[static_cast<std::size_t>(place)]) {
      if (block.host != host) continue;
      std::int64_t first = 0;
      for (const auto& range : slice) {
        const auto number = std::exchange(first, first + tiles_in(range));
        if (places_[range.parameter] != place) continue;
        if (!nodes_.touched(range.parameter, nodes_in(block))) continue;
        const auto inside = part ? within(range, number, part->begin, part->end) : range;
        if (visit && inside.begin < inside.end) {
          visit(block, inside, offset + bytes_before(inside) - bytes_before(range));
        }
        offset +=
            static_cast<std::size_t>(range.end - range.begin) * size_of(type_of(range.parameter));
      }
    }
  }
  return offset;
}

/// Where the sums of a slice lie: neighbours in memory are one run.
std::vector<std::span<std::byte>> HostSums::runs_of(const std::vector<ElementRange>& slice) const {
  std::vector<std::span<std::byte>> runs;
  for (const auto& range : slice) {
    auto* const begin = sum_at(range.parameter) + bytes_before(range);
    const auto bytes =
        static_cast<std::size_t>(range.end - range.begin) * size_of(type_of(range.parameter));
    if (!runs.empty() && begin - (runs.back().data() + runs.back().size()) <
                             static_cast<std::ptrdiff_t>(kCacheLine)) {
      runs.back() = {runs.back().data(), begin + bytes};
    } else {
      runs.emplace_back(begin, bytes);
    }
  }
  return runs;
}

bool HostSums::progress() {
  while (filled_ < pieces_.size() &&
         (filled_ < kWindow || words_->sent[filled_ % kWindow].load(std::memory_order_acquire) ==
                                   tag(filled_ - kWindow + 1))) {
    fill(pieces_[filled_], filled_);
    words_->members[team().rank].filled.store(tag(++filled_), std::memory_order_release);
    announce(state_.job().board());
    if (drives()) drive();
  }
  if (drives()) drive();
  while (reduced_ < pieces_.size() &&
         words_->arrived[reduced_ % kWindow].load(std::memory_order_acquire) == tag(reduced_ + 1)) {
    reduce(pieces_[reduced_], reduced_);
    words_->members[team().rank].reduced.store(tag(++reduced_), std::memory_order_release);
    announce(state_.job().board());
    if (drives()) drive();
  }
  return words_->finished.load(std::memory_order_acquire) == step_;
}

/// This worker's part of what this host sends to the others of a piece.
void HostSums::fill(const Piece& piece, std::size_t k) {
  for (int host = 0; host < hosts_; ++host) {
    if (host == here_) continue;
    const auto& slice = piece.slices[static_cast<std::size_t>(host)];
    visit(slice, here_, own_part(slice),
          [&](const HostSubtree& block, const ElementRange& range, std::size_t offset) {
            void* const to = staging(true, k, host) + offset;
            slices_.fold(nodes_.nodes_of(range.parameter, nodes_in(block)), range.begin, range.end,
                         type_of(range.parameter), {&to, 1});
          });
  }
}

/// This worker's part of this host's slice of a piece: its own nodes, and the sums of other hosts'.
void HostSums::reduce(const Piece& piece, std::size_t k) {
  const auto& slice = piece.slices[static_cast<std::size_t>(here_)];
  const auto part = own_part(slice);
  // Where element 0 of another host's block would lie, by parameter.
  std::map<std::pair<std::uint32_t, const HostSubtree*>, const std::byte*> received;
  for (int host = 0; host < hosts_; ++host) {
    if (host == here_) continue;
    visit(slice, host, part,
          [&](const HostSubtree& block, const ElementRange& range, std::size_t offset) {
            received[{range.parameter, &block}] =
                staging(false, k, host) + offset - bytes_before(range);
          });
  }
  for (const auto& range : clipped(slice, part)) {
    auto sources = nodes_.nodes_of(range.parameter, {0, 0});
    for (const auto& block : blocks_of(range.parameter)) {
      if (!nodes_.touched(range.parameter, nodes_in(block))) continue;
      if (block.host != here_) {
        // Any of the subtree's leaves has its place in the tree over the others.
        sources.pattern[block.begin] = '1';
        sources.nodes.push_back(received.at({range.parameter, &block}));
        continue;
      }
      const auto own = nodes_.nodes_of(range.parameter, nodes_in(block));
      for (auto n = block.begin; n < block.end; ++n) sources.pattern[n] = own.pattern[n];
      sources.nodes.insert(sources.nodes.end(), own.nodes.begin(), own.nodes.end());
    }
    void* const to = sum_at(range.parameter) + bytes_before(range);
    slices_.fold(sources, range.begin, range.end, type_of(range.parameter), {&to, 1});
  }
}

/// Neighbours that are behind this worker; else all of other hosts. Two workers are never behind
/// one another: what the host's workers wait for together is on other hosts. In a step of lists
/// alone nobody fills a piece.
RankSet HostSums::missing() const {
  RankSet behind;
  RankSet elsewhere;
  for (int m = 0; m < team().size() && filled_ > 0; ++m) {
    if (words_->members[m].filled.load() < tag(filled_)) {
      behind.insert(group_.job_rank(team().member(m)));
    }
  }
  for (int r = 0; r < group_.size(); ++r) {
    if (state_.host_of(r) != here_) elsewhere.insert(group_.job_rank(r));
  }
  return behind.empty() ? elsewhere : behind;
}

}  // namespace tutti
