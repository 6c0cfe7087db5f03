#include "sync/step/leaf_intake.h"

#include <algorithm>

#include <fmt/format.h>

#include "memory/memory_need.h"
#include "sync/plan/assignment.h"
#include "tutti/error.h"

namespace tutti {

LeafIntake::LeafIntake(StepProtocol& protocol, NodeStore& nodes, const ExchangeOptions& options,
                       HostExchange& hosts, BucketFolds& buckets)
    : protocol_(protocol),
      nodes_(nodes),
      options_(options),
      hosts_(hosts),
      buckets_(buckets),
      first_look_(nodes_.boards(), options_.name) {}

void LeafIntake::require_room(std::int64_t leaves, std::int64_t cuts) {
  if (leaves < 2) return;
  const auto nodes = max_nodes(leaves) + cuts;
  require_nodes(cuts > 0 ? std::min(nodes, leaves) : nodes, leaves);
}

void LeafIntake::require_nodes(std::int64_t nodes, std::int64_t leaves) {
  const int most = static_cast<int>(std::min<std::int64_t>(nodes, kMaxSlots));
  const int more = most - nodes_.leaves().slots_used();
  if (more <= 0 || leaves <= roomy_for_) return;
  const auto refusal = refuse_memory(
      protocol_.job().system(),
      {nodes_.plan().slot_bytes() * static_cast<std::size_t>(more), hosts_.arenas_here(),
       fmt::format("up to {} more gradient copies of \"{}\", for {} pieces of a step", more,
                   options_.name, leaves)});
  if (!refusal.empty()) {
    protocol_.fail(refusal);
    throw OutOfMemory(refusal);
  }
  roomy_for_ = leaves;
}

/// Where nodes are folded elsewhere the arena has room for those alone that are left at the end.
void LeafIntake::require_room_from(std::int64_t first, std::int64_t leaves) {
  if (nodes_.leaves().folds_elsewhere()) {
    return require_nodes(node_count({first, first + leaves}), leaves);
  }
  require_room(leaves, std::ranges::count_if(options_.node_boundaries, [&](std::int64_t cut) {
                 return cut > first && cut < first + leaves;
               }));
}

void LeafIntake::begin_leaf(double weight) {
  protocol_.job().require_own();
  const auto declared = protocol_.own_header().declared;
  if (declared >= 0 && nodes_.leaves().leaves() == declared) {
    throw InvalidArgument(
        fmt::format("accumulate() was told of {} micro-batches, this is one more", declared));
  }
  // With a known number, nodes are folded as leaves come, so the place of this leaf must be known.
  if (!nodes_.leaves().start() && nodes_.leaves().leaves() > 0) find_start(declared >= 0);
  nodes_.leaves().begin_leaf(weight);
}

std::int64_t LeafIntake::next_leaf() {
  if (!nodes_.leaves().start()) find_start(true);
  return *nodes_.leaves().start() + nodes_.leaves().leaves();
}

/// Adds up the leaves of the workers before this one, if they are known or `wait` is set.
void LeafIntake::find_start(bool wait) {
  const auto knows = [this](int r) {
    const auto& other = protocol_.header(r);
    if (other.counted.load(std::memory_order_acquire) >= protocol_.step()) return true;
    return other.opened.load(std::memory_order_acquire) >= protocol_.step() && other.declared >= 0;
  };
  const int rank = protocol_.group().rank();
  const auto all_before = [&](int r) { return r >= rank || knows(r); };
  if (wait) {
    protocol_.guarded([&] { protocol_.wait_for_all(all_before); });
  }
  std::int64_t start = 0;
  for (int r = 0; r < rank; ++r) {
    if (!knows(r)) return;
    const auto& other = protocol_.header(r);
    start += other.declared >= 0 ? other.declared : other.leaves;
  }
  nodes_.leaves().set_start(start);
}

void LeafIntake::write(std::size_t parameter, const void* gradient, bool last, bool may_stay) {
  protocol_.job().require_own();
  const auto& spec = nodes_.plan().parameters()[parameter].spec;
  first_look_.note(nodes_.leaves().leaves(), parameter, gradient,
                   static_cast<std::size_t>(spec.count) * size_of(spec.dtype));
  nodes_.leaves().write(parameter, gradient, last, may_stay);
  buckets_.note_write(parameter, last);
}

void LeafIntake::note(std::size_t parameter, bool last) {
  protocol_.job().require_own();
  nodes_.leaves().write(parameter, nullptr, last);
  buckets_.note_write(parameter, last);
}

/// A leaf of weight 0 leaves nothing that would come.
void LeafIntake::fold(std::size_t parameter, const void* gradient, bool last, bool may_stay) {
  protocol_.job().require_own();
  auto& leaves = nodes_.leaves();
  leaves.write(parameter, gradient, last, may_stay);
  buckets_.note_write(parameter, last && leaves.weight() == 0);
}

void LeafIntake::write(std::size_t parameter, const RowEntries& entries, bool last) {
  protocol_.job().require_own();
  const auto& entry = nodes_.plan().parameters()[parameter];
  first_look_.note(
      nodes_.leaves().leaves(), parameter, entries.values,
      static_cast<std::size_t>(entries.count * entry.row_elements()) * size_of(entry.spec.dtype));
  nodes_.leaves().write(parameter, entries, last);
  buckets_.note_write(parameter, last);
}

void LeafIntake::finish() {
  if (nodes_.leaves().in_leaf()) nodes_.leaves().end_leaf();
  const auto declared = protocol_.own_header().declared;
  if (protocol_.mode() != StepMode::micro_batches || declared < 0 ||
      declared == nodes_.leaves().leaves()) {
    return;
  }
  const auto text = fmt::format("accumulate() was told of {} micro-batches, but {} were computed",
                                declared, nodes_.leaves().leaves());
  protocol_.fail(text);
  throw InvalidArgument(text);
}

void LeafIntake::publish() {
  auto& mine = protocol_.own_header();
  // Others wait for the number where it was not declared.
  const auto company = mine.declared < 0
                           ? with_all(protocol_.header(0).counted, protocol_.state().members())
                           : with_next();
  const bool is_scope = protocol_.mode() == StepMode::micro_batches;
  if (nodes_.is_published()) {
    tutti::publish(protocol_.job(), mine.counted, protocol_.step(), {}, company);
  } else {
    mine.leaves = is_scope ? nodes_.leaves().leaves() : mine.declared;
    tutti::publish(protocol_.job(), mine.counted, protocol_.step(), {published(mine.leaves)},
                   company);
  }
  // With its start known, this worker publishes only as many nodes as the tree needs.
  if (is_scope && !nodes_.leaves().start() && nodes_.leaves().leaves() > 1) find_start(true);
  if (wait_) {
    nodes_.leaves().let_all_leave();
    wait_();
  }
  nodes_.publish();
  nodes_.leaves().place_sums();
}

}  // namespace tutti
