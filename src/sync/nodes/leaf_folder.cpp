#include "sync/nodes/leaf_folder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Loans of one parameter at a time: callers that keep their loans would use up the memory.
constexpr int kMaxLoans = 2;

}  // namespace

void publish_nodes(const LeafFolder& folder, StepHeader& header) {
  const auto nodes = folder.nodes_at_end();
  header.node_count = static_cast<std::int32_t>(nodes.size());
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    header.nodes[k] = nodes[k];
    header.nodes[k].block.begin -= folder.start().value_or(0);
  }
}

LeafFolder::LeafFolder(const Plan& plan, std::byte* arena, StepBoard board, const Options& options,
                       std::function<void(int)> before_slot,
                       std::function<void(std::size_t, std::size_t)> before_list)
    : plan_(plan),
      arena_(arena),
      board_(board),
      options_(options),
      largest_(options.reports_magnitude ? &measured_ : nullptr),
      magnitudes_(options.reports_magnitude ? plan.parameters().size() : 0),
      before_slot_(std::move(before_slot)),
      before_list_(std::move(before_list)),
      free_(plan.parameters().size()),
      lent_(std::make_shared<LentSlots>(plan.parameters().size())),
      used_(plan.parameters().size(), 1),
      finished_(plan.parameters().size()) {
  nodes_.reserve(kMaxSlots);
  reset();
}

void LeafFolder::reset(std::optional<std::int64_t> leaves) {
  if (elsewhere_ != nullptr) elsewhere_->reset();
  count_ = leaves;
  nodes_.clear();
  std::fill(free_.begin(), free_.end(), ~std::uint64_t{0});
  std::fill(finished_.begin(), finished_.end(), std::uint8_t{0});
  start_.reset();
  leaves_ = 0;
  in_leaf_ = false;
  zero_copy_ = 0;
}

void LeafFolder::set_start(std::int64_t first_leaf) {
  TUTTI_CHECK(!in_leaf_ && !start_, "the first leaf is set once, between leaves");
  start_ = first_leaf;
  const auto apart = std::exchange(nodes_, {});
  nodes_.reserve(kMaxSlots);
  for (std::size_t k = 0; k < apart.size(); ++k) {
    auto node = apart[k];
    node.block.begin += first_leaf;
    const auto to = static_cast<int>(nodes_.size());
    if (const auto from = static_cast<int>(k); from != to) {
      std::memcpy(board_.slot_table(to), board_.slot_table(from), free_.size());
      if (options_.per_parameter_weights) {
        std::memcpy(board_.weights(to), board_.weights(from), free_.size() * sizeof(double));
      }
    }
    chain_ = chain_length(node.block);
    const auto* table = board_.slot_table(to);
    const auto* weights = board_.weights(to);
    for (std::size_t p = 0; chain_ > 0 && p < free_.size(); ++p) {
      merge(p, {table[p], nullptr, options_.per_parameter_weights ? weights[p] : 0.0}, chain_);
    }
    push(node);
  }
  for (std::size_t k = 0; elsewhere_ != nullptr && count_ && k < nodes_.size(); ++k) {
    if (grows(nodes_[k].block)) continue;
    for (std::size_t p = 0; p < free_.size(); ++p) let_leave(p, k, false);
  }
}

void LeafFolder::begin_leaf(double weight) {
  TUTTI_CHECK(!in_leaf_, "leaves do not nest");
  // One for the leaf, and one for a sum of lists.
  if (nodes_.size() >= kMaxSlots - 2) {
    throw InvalidArgument(
        "too many micro-batches are held apart because their place among all is not known: tell "
        "accumulate() how many micro-batches this worker has");
  }
  in_leaf_ = true;
  weight_ = weight;
  const auto row = static_cast<int>(nodes_.size());
  std::memset(board_.slot_table(row), kAbsent, free_.size());
  std::fill(finished_.begin(), finished_.end(), std::uint8_t{0});
  std::fill(magnitudes_.begin(), magnitudes_.end(), 0.0);
  measured_ = 0;
  chain_ = start_ ? chain_length({*start_ + leaves_, 1}) : 0;
  // One leaf alone is a node wherever it is.
  const bool is_placed = count_ && (start_ || *count_ == 1);
  is_last_ = is_placed && leaves_ + 1 == *count_;
  ends_node_ = is_last_ || (is_placed && !grows(merged({{*start_ + leaves_, 1}, 0}).block));
}

void LeafFolder::write(std::size_t parameter, const void* gradient, bool last, bool may_stay) {
  TUTTI_CHECK(in_leaf_ && !finished_[parameter], "a gradient outside its leaf");
  finished_[parameter] = last;
  if (weight_ == 0) return;
  const auto count = gradient == nullptr ? 0 : plan_.parameters()[parameter].node_count();
  // Where there is nothing to hold, there may be no address.
  if (gradient == nullptr) gradient = place(parameter, 0);
  const Moving moving{kAbsent, gradient, weight_, may_stay, count};
  auto& slot = board_.slot_table(static_cast<int>(nodes_.size()))[parameter];
  if (slot != kAbsent) {
    add(parameter, slot, moving);
    if (last) merge(parameter, {std::exchange(slot, kAbsent), nullptr, weight_}, chain_);
  } else if (last && chain_ > 0) {
    merge(parameter, moving, chain_);
  } else {
    slot = take_slot(parameter, last && may_stay ? gradient : nullptr);
    if (options_.per_parameter_weights) {
      board_.weights(static_cast<int>(nodes_.size()))[parameter] = weight_;
    }
    set(parameter, slot, moving);
  }
  if (elsewhere_ != nullptr) {
    if (last && ends_node_) let_leave(parameter, nodes_.size() - chain_, is_last_);
    return;
  }
  note_magnitude(parameter);
}

void LeafFolder::write(std::size_t parameter, const RowEntries& entries, bool last) {
  TUTTI_CHECK(in_leaf_ && !finished_[parameter], "a gradient outside its leaf");
  finished_[parameter] = last;
  if (weight_ == 0 || entries.count == 0) return;
  const auto row = static_cast<int>(nodes_.size());
  auto& slot = board_.slot_table(row)[parameter];
  const auto taken = take_slot(parameter, nullptr);
  room_for(parameter, taken, static_cast<std::size_t>(entries.count))
      .gather(entries, weight_, largest_);
  slot = slot == kAbsent ? taken : add_nodes(parameter, slot, taken);
  if (options_.per_parameter_weights) board_.weights(row)[parameter] = weight_;
  note_magnitude(parameter);
}

void LeafFolder::note_magnitude(std::size_t parameter) {
  if (largest_ == nullptr) return;
  const double measured = std::exchange(measured_, 0.0);
  auto& so_far = magnitudes_[parameter];
  if (std::isfinite(so_far) && !(measured <= so_far)) so_far = measured;
}

void LeafFolder::end_leaf() {
  TUTTI_CHECK(in_leaf_, "no leaf to end");
  in_leaf_ = false;
  const auto* table = board_.slot_table(static_cast<int>(nodes_.size()));
  for (std::size_t p = 0; chain_ > 0 && p < free_.size(); ++p) {
    // A gradient that was folded while hot has no slot here, and its chain is already merged.
    const bool was_hot = finished_[p] && weight_ != 0 && !plan_.parameters()[p].row_sparse();
    if (was_hot && table[p] == kAbsent) continue;
    merge(p, {table[p], nullptr, weight_}, chain_);
  }
  for (std::size_t p = 0; elsewhere_ != nullptr && ends_node_ && p < free_.size(); ++p) {
    let_leave(p, nodes_.size() - chain_, false);
  }
  push({{start_.value_or(0) + leaves_, 1}, weight_});
  ++leaves_;
}

/// Number of nodes at the top of the stack that merge with `block`, as a binary counter carries.
std::size_t LeafFolder::chain_length(Block block) const {
  std::size_t chain = 0;
  while (chain < nodes_.size()) {
    const auto& left = nodes_[nodes_.size() - 1 - chain].block;
    if (left.size != block.size || left.begin + left.size != block.begin ||
        left.begin % (2 * left.size) != 0 ||
        std::binary_search(options_.node_boundaries.begin(), options_.node_boundaries.end(),
                           block.begin)) {
      break;
    }
    block = {left.begin, 2 * left.size};
    ++chain;
  }
  return chain;
}

/// Folds one parameter of the newest node into the `chain` nodes below it. The result is noted in
/// the table of the lowest one.
void LeafFolder::merge(std::size_t parameter, Moving moving, std::size_t chain) {
  const auto top = nodes_.size();
  for (std::size_t k = top; k > top - chain; --k) {
    const auto left = static_cast<int>(k) - 1;
    auto& slot = board_.slot_table(left)[parameter];
    const bool absent = moving.slot == kAbsent && moving.hot == nullptr;
    const double weight =
        slot == kAbsent || !options_.per_parameter_weights ? 0.0 : board_.weights(left)[parameter];
    if (slot != kAbsent && moving.hot != nullptr) {
      add(parameter, slot, moving);
      moving = {slot, nullptr, weight + moving.weight};
    } else if (slot != kAbsent && !absent) {
      moving = {add_nodes(parameter, slot, moving.slot), nullptr, weight + moving.weight};
    } else if (slot != kAbsent) {
      moving = {slot, nullptr, weight};
    } else if (moving.hot != nullptr) {
      const auto taken = take_slot(parameter, moving.may_stay ? moving.hot : nullptr);
      set(parameter, taken, moving);
      moving = {taken, nullptr, moving.weight};
    }
    slot = kAbsent;
  }
  const auto lowest = static_cast<int>(top - chain);
  board_.slot_table(lowest)[parameter] = moving.slot;
  if (options_.per_parameter_weights) board_.weights(lowest)[parameter] = moving.weight;
}

/// The sum of two nodes: of lists, in a slot of its own.
std::uint8_t LeafFolder::add_nodes(std::size_t parameter, std::uint8_t left, std::uint8_t right) {
  const auto& entry = plan_.parameters()[parameter];
  const auto give_back = [&](std::uint8_t slot) { free_[parameter] |= std::uint64_t{1} << slot; };
  if (!entry.row_sparse()) {
    if (elsewhere_ != nullptr) {
      elsewhere_->add_node(parameter, left, right);
    } else {
      add_scaled(place(parameter, left), entry.node_type, place(parameter, right), entry.node_type,
                 entry.node_count(), 1.0);
    }
    give_back(right);
    return left;
  }
  const auto a = list_in(parameter, left);
  const auto b = list_in(parameter, right);
  const auto sum = take_slot(parameter, nullptr);
  room_for(parameter, sum, a.rows.size() + b.rows.size()).add(a, b);
  give_back(left);
  give_back(right);
  return sum;
}

RowList LeafFolder::list_in(std::size_t parameter, std::uint8_t slot) const {
  return RowRoom(place(parameter, slot), plan_.parameters()[parameter]).list();
}

/// Asks for twice as much as is needed, so that it does not ask in every step.
RowRoom LeafFolder::room_for(std::size_t parameter, int slot, std::size_t rows) {
  const auto& entry = plan_.parameters()[parameter];
  const auto all = static_cast<std::size_t>(entry.rows());
  auto& used = lists_[{parameter, slot}];
  if (RowRoom::used_bytes(entry, std::min(rows, all)) > used) {
    const auto more = RowRoom::used_bytes(entry, std::min(2 * rows, all)) - used;
    if (before_list_) before_list_(parameter, more);
    used += more;
    list_bytes_ += more;
  }
  return {place(parameter, static_cast<std::uint8_t>(slot)), entry};
}

StepHeader::Node LeafFolder::merged(StepHeader::Node leaf) const {
  for (std::size_t k = 0; k < chain_; ++k) {
    const auto& left = nodes_[nodes_.size() - 1 - k];
    leaf = {{left.block.begin, left.block.size + leaf.block.size}, left.weight + leaf.weight};
  }
  return leaf;
}

void LeafFolder::push(StepHeader::Node leaf) {
  leaf = merged(leaf);
  nodes_.resize(nodes_.size() - std::exchange(chain_, 0));
  nodes_.push_back(leaf);
}

std::vector<StepHeader::Node> LeafFolder::nodes_at_end() const {
  auto nodes = nodes_;
  if (!in_leaf_) return nodes;
  nodes.resize(nodes.size() - chain_);
  nodes.push_back(merged({{start_.value_or(0) + leaves_, 1}, weight_}));
  return nodes;
}

std::unique_ptr<SlotLoan> LeafFolder::lend(std::size_t parameter) {
  const auto taken = lent(parameter);
  const int slot = std::countr_zero(free_[parameter] & ~taken);
  if (slot >= used_[parameter] || std::popcount(taken) >= kMaxLoans) return nullptr;
  return std::make_unique<SlotLoan>(lent_, parameter, slot,
                                    place(parameter, static_cast<std::uint8_t>(slot)));
}

LeafFolder::Held LeafFolder::held_since(std::int64_t first_leaf, std::size_t parameter) const {
  Held held;
  const auto rows = nodes_.size() + (in_leaf_ ? 1 : 0);
  for (std::size_t k = 0; k < rows; ++k) {
    const auto node = k < nodes_.size()
                          ? nodes_[k]
                          : StepHeader::Node{{start_.value_or(0) + leaves_, 1}, weight_};
    if (node.block.begin < first_leaf) continue;
    const auto slot = board_.slot_table(static_cast<int>(k))[parameter];
    held.nodes.push_back(node);
    held.parts.push_back(slot == kAbsent ? nullptr : place(parameter, slot));
  }
  return held;
}

void LeafFolder::place_sums() {
  auto* const sums = board_.sum_slots();
  for (std::size_t p = 0; p < free_.size(); ++p) {
    const bool lists = plan_.parameters()[p].row_sparse();
    const int slot = std::countr_one(lists ? ~free_[p] : lent(p));
    TUTTI_CHECK(slot < kMaxSlots, "no slot left for a sum");
    use(p, slot);
    sums[p] = static_cast<std::uint8_t>(slot);
  }
}

std::uint8_t LeafFolder::take_slot(std::size_t parameter, const void* born) {
  auto& free = free_[parameter];
  const auto lent_ones = free & lent(parameter);
  for (auto rest = lent_ones; rest != 0; rest &= rest - 1) {
    const auto slot = static_cast<std::uint8_t>(std::countr_zero(rest));
    if (place(parameter, slot) != born) continue;
    ++zero_copy_;
    free &= ~(std::uint64_t{1} << slot);
    return slot;
  }
  TUTTI_CHECK((free & ~lent_ones) != 0, "no slot left for a node");
  const int slot = std::countr_zero(free & ~lent_ones);
  if (elsewhere_ == nullptr) use(parameter, slot);
  free &= ~(std::uint64_t{1} << slot);
  return static_cast<std::uint8_t>(slot);
}

void LeafFolder::use(std::size_t parameter, int slot) {
  if (slot >= slots_used_ && !plan_.parameters()[parameter].row_sparse()) {
    if (before_slot_) before_slot_(slot);
    slots_used_ = slot + 1;
  }
  used_[parameter] = std::max(used_[parameter], static_cast<std::uint8_t>(slot + 1));
}

std::byte* LeafFolder::place(std::size_t parameter, std::uint8_t slot) const {
  return arena_ + plan_.node_place(parameter, slot);
}

}  // namespace tutti
