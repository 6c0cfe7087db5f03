#include "sync/coded/coded_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sync/nodes/logical_workers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::size_t logical_workers_of(const StepExchange& exchange, const CodingOptions& options) {
  return options.logical_workers.empty() ? static_cast<std::size_t>(exchange.group().size())
                                         : options.logical_workers.size();
}

Buckets buckets_of(const Plan& plan, const Compression& compression) {
  if (compression.scope == CodecScope::bucket) {
    return buckets_in_registration_order(plan, compression.fusion);
  }
  Buckets buckets;
  for (const auto p : partitioned_parameters(plan)) buckets.push_back({p});
  return buckets;
}

/// A codec that writes more than its tile_bytes() finds room for its bound(), until it is refused.
std::size_t bound_of(const Plan& plan, std::span<const std::uint32_t> bucket,
                     const Compression& compression, const EncodeContext& context) {
  const auto whole = context.count == 0 ? 0 : compression.codec->bound(context.count, context);
  if (!works_in_tiles(compression)) return whole;
  std::size_t bytes = 0;
  for (const auto p : bucket) {
    bytes += part_bytes(*compression.codec, plan.parameters()[p].spec.count);
  }
  return std::max(whole, bytes);
}

MessageStore::Layout layout_of(const StepExchange& exchange, const CodingOptions& options) {
  const auto& plan = exchange.plan();
  for (const auto& entry : plan.parameters()) {
    if (entry.node_type == DType::float32 || !entry.is_partitioned()) continue;
    throw Unsupported(
        fmt::format("codec {}: parameter \"{}\" is {}; codecs take float32, float16 and bfloat16",
                    options.compression.codec->name(), entry.spec.name, name_of(entry.spec.dtype)));
  }
  MessageStore::Layout layout{.logical_workers = logical_workers_of(exchange, options),
                              .buckets = buckets_of(plan, options.compression),
                              .bounds = {},
                              .kept = options.compression.momentum_correction ? 2
                                      : options.compression.error_feedback    ? 1
                                                                              : 0};
  for (const auto& bucket : layout.buckets) {
    const auto count = elements_of(plan, bucket);
    if (count > options.compression.codec->max_values()) {
      throw Unsupported(fmt::format(
          "codec {}: a bucket of {} elements (\"{}\" and what follows); it takes at most {}",
          options.compression.codec->name(), count, plan.parameters()[bucket.front()].spec.name,
          options.compression.codec->max_values()));
    }
    layout.bounds.push_back(
        bound_of(plan, bucket, options.compression,
                 {.logical_workers = static_cast<std::int64_t>(layout.logical_workers),
                  .message_format = options.compression.message_format,
                  .count = count}));
  }
  return layout;
}

}  // namespace

CodedGradients::CodedGradients(StepExchange& exchange, CodingOptions options)
    : ArraySource(exchange.nodes(), partitioned_parameters(exchange.plan())),
      exchange_(exchange),
      slices_(exchange.nodes()),
      spans_hosts_(exchange.group().state()->spans_hosts()),
      options_(std::move(options)),
      board_(exchange.memory(), exchange.plan(), layout_of(exchange, options_), options_.name),
      encoder_(exchange.plan(), board_, options_.compression, options_.values),
      sum_(*options_.compression.codec, leaves()),
      traffic_(exchange.plan(), board_.buckets()),
      sum_values_(board_.buckets().size()),
      touched_by_any_(board_.buckets().size()),
      carried_(board_.logical_workers()),
      homes_(carried_.size(), -1),
      squares_(carried_.size(), std::vector<double>(board_.buckets().size())) {
  if (spans_hosts_) {
    travelling_.emplace(exchange_, board_);
    if (exchange_.group().state()->team().rank == 0) {
      exchange_.hosts().run_in_background([this] { travelling_->move(); });
    }
  }
  const auto parameters = exchange.plan().parameters().size();
  for (auto& one : carried_) {
    one.touched.resize(parameters);
    one.share.resize(parameters);
    one.at_in_message.resize(parameters);
    one.part_at.resize(parameters);
    one.elements.resize(board_.buckets().size());
  }
}

CodedGradients::~CodedGradients() {
  if (!travelling_) return;
  // A step may have been left in the midst of backward, with messages on their way.
  exchange_.hosts().stop_background();
  exchange_.hosts().cancel_sending();
}

std::int64_t CodedGradients::leaves() const {
  return options_.logical_workers.empty() ? static_cast<std::int64_t>(board_.logical_workers())
                                          : options_.shards;
}

Block CodedGradients::place_of(std::size_t logical) const {
  return {options_.logical_workers.empty() ? static_cast<std::int64_t>(logical)
                                           : options_.logical_workers[logical].begin,
          1};
}

// ---- who has what in the current step ----

/// Nodes, weights, and what was touched, of each logical worker.
void CodedGradients::collect_nodes() {
  const auto ranges = options_.logical_workers.empty()
                          ? nodes_of_workers(nodes().held(), carried_.size())
                          : nodes_of(nodes().held(), options_.logical_workers);
  const bool in_tiles = works_in_tiles(options_.compression);
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    auto& one = carried_[l];
    one.nodes = ranges[l];
    one.weight = nodes().held().weight_of(one.nodes);
    for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
      auto& elements = one.elements[b];
      elements = 0;
      std::size_t bytes = 0;
      for (const auto p : board_.buckets()[b]) {
        one.touched[p] = nodes().touched(p, one.nodes);
        one.at_in_message[p] = elements;
        one.part_at[p] = bytes;
        if (one.touched[p] == 0) continue;
        elements += count_of(p);
        if (in_tiles) bytes += part_bytes(*options_.compression.codec, count_of(p));
      }
    }
  }
  find_shares();
  // A step that failed may have counted some values. No worker counts at this time.
  for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
    sum_values_[b] = board_.sum_values(b).load(std::memory_order_relaxed);
  }
}

void CodedGradients::find_shares() {
  const bool by_contributors = options_.divisor == Divisor::contributors;
  for (std::uint32_t p = 0; p < exchange_.plan().parameters().size(); ++p) {
    const double total =
        by_contributors ? nodes().contributed(p, nodes().held().all()) : nodes().held().weight();
    for (auto& one : carried_) {
      const double own = by_contributors ? nodes().contributed(p, one.nodes) : one.weight;
      one.share[p] = total > 0 ? own / total : 0;
    }
  }
}

/// Per logical worker, the buckets that this rank encodes: each goes to the worker with the least
/// load among those that carry its leaves, on the host of its first one.
std::vector<std::vector<std::size_t>> CodedGradients::own_tasks() const {
  const int rank = exchange_.group().rank();
  const auto& held = nodes().held();
  std::vector<std::int64_t> load(static_cast<std::size_t>(exchange_.group().size()));
  const auto load_of = [&](int r) -> std::int64_t& { return load[static_cast<std::size_t>(r)]; };
  const auto host_of = [this](int r) { return exchange_.group().state()->host_of(r); };
  std::vector<std::vector<std::size_t>> tasks(carried_.size());
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    const auto& one = carried_[l];
    if (one.nodes.begin == one.nodes.end) continue;
    const int first = held[one.nodes.begin].worker;
    const int last = held[one.nodes.end - 1].worker;
    for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
      int least = first;
      for (int r = first + 1; r <= last; ++r) {
        if (load_of(r) < load_of(least) && host_of(r) == host_of(first)) least = r;
      }
      load_of(least) += one.elements[b];
      if (least == rank) tasks[l].push_back(b);
    }
  }
  return tasks;
}

// ---- encoding ----

/// The logical worker whose last leaf is open here, and all of whose leaves are this worker's.
std::optional<std::size_t> CodedGradients::closing() const {
  const auto& leaves = nodes().leaves();
  if (options_.logical_workers.empty()) {
    return exchange_.protocol().mode() == StepMode::one_backward
               ? std::optional(static_cast<std::size_t>(exchange_.group().rank()))
               : std::nullopt;
  }
  const auto open = *leaves.start() + leaves.leaves();
  for (std::size_t l = 0; l < options_.logical_workers.size(); ++l) {
    const auto& range = options_.logical_workers[l];
    if (range.end - 1 == open && range.begin >= *leaves.start()) return l;
  }
  return {};
}

void CodedGradients::wrote(std::uint32_t parameter, double loss_scale) {
  if (!exchange_.plan().parameters()[parameter].is_partitioned()) return;
  // Who contributed to a parameter is known once the leaf has ended.
  if (options_.divisor == Divisor::contributors &&
      exchange_.protocol().mode() != StepMode::one_backward)
    return;
  const auto logical = closing();
  if (!logical || nodes().leaves().weight() == 0) return;
  if (early_step_ != exchange_.protocol().numbers().done || early_logical_ != *logical) {
    if (early_step_ != exchange_.protocol().numbers().done) early_.clear();
    early_step_ = exchange_.protocol().numbers().done;
    early_logical_ = *logical;
    unwritten_.clear();
    for (const auto& bucket : board_.buckets()) unwritten_.push_back(bucket.size());
  }
  const auto bucket = board_.bucket_of(parameter);
  if (--unwritten_[bucket] > 0) return;
  encode_early(*logical, bucket, loss_scale);
  early_.emplace(*logical, bucket);
}

/// All of the bucket's gradients are complete and hot, in this worker's own nodes.
void CodedGradients::encode_early(std::size_t logical, std::size_t bucket, double loss_scale) {
  const auto held_of = [&](std::uint32_t p) {
    return nodes().leaves().held_since(place_of(logical).begin, p);
  };
  const auto& members = board_.buckets()[bucket];
  std::vector<Block> blocks;
  std::vector<double> weights;
  for (const auto& node : held_of(members.front()).nodes) {
    blocks.push_back(node.block);
    weights.push_back(node.weight);
  }
  const double divisor = fold_weights(blocks, weights, leaves()) * loss_scale;
  const auto folds = [&](std::uint32_t p) -> BucketEncoder::TileFold {
    const auto parts = held_of(p).parts;
    std::vector<Block> present;
    std::vector<const std::byte*> at;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (parts[k] == nullptr) continue;
      present.push_back(blocks[k]);
      at.push_back(parts[k]);
    }
    return [at, divisor, program = FoldProgram::of_blocks(present, leaves())](
               std::int64_t begin, std::int64_t count, void* to) {
      std::vector<const void*> sources;
      for (const auto* part : at) {
        sources.push_back(part + static_cast<std::size_t>(begin) * sizeof(float));
      }
      tutti::fold({.program = &program,
                   .divisor = divisor,
                   .sources = sources,
                   .destinations = {&to, 1},
                   .count = count});
    };
  };
  const MessageTask task{logical, bucket, members, exchange_.protocol().number()};
  encoder_.encode(task, folds);
  if (travelling_) travelling_->open();
  made(task);
  exchange_.hosts().resume_background();
}

void CodedGradients::begin(double loss_scale) {
  loss_scale_ = loss_scale;
  is_prepared_ = false;
}

CodedGradients::Refusal CodedGradients::prepare() {
  collect_nodes();
  if (travelling_) travelling_->open();
  if (early_step_ != exchange_.protocol().numbers().done) early_.clear();
  encode_own();
  auto refusal = exchange_messages();
  is_prepared_ = refusal.text.empty();
  return refusal;
}

/// The messages of this rank that were not made early.
void CodedGradients::encode_own() {
  const auto tasks = own_tasks();
  for (std::size_t l = 0; l < tasks.size(); ++l) {
    const auto folds = [&](std::uint32_t p) { return fold_of(l, p); };
    for (const auto b : tasks[l]) {
      if (early_.contains({l, b})) continue;
      std::vector<std::uint32_t> touched;
      for (const auto p : board_.buckets()[b]) {
        if (carried_[l].touched[p] != 0) touched.push_back(p);
      }
      const MessageTask task{l, b, touched, exchange_.protocol().number()};
      encoder_.encode(task, folds);
      made(task);
    }
  }
}

/// Folds the nodes of all workers.
BucketEncoder::TileFold CodedGradients::fold_of(std::size_t logical, std::uint32_t parameter) {
  const auto& one = carried_[logical];
  auto sources = nodes().sources_of(parameter, one.nodes);
  if (options_.divisor != Divisor::contributors) sources.divisor = one.weight;
  sources.divisor *= loss_scale_;
  return [this, sources](std::int64_t begin, std::int64_t count, void* to) {
    slices_.fold(sources, begin, begin + count, DType::float32, {&to, 1});
  };
}

CodedGradients::Refusal CodedGradients::first_refusal() const {
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    if (carried_[l].nodes.begin == carried_[l].nodes.end) continue;
    for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
      const auto& header = board_.header(l, b);
      if (header.refusal[0] != 0) return {header.refusal, header.is_overflow != 0};
    }
  }
  return {};
}

}  // namespace tutti
