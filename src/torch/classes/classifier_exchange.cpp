#include "torch/classes/classifier_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "comm/gather_bytes.h"
#include "run/data/leaf_seed.h"
#include "torch/classes/class_sums.h"
#include "torch/split/layer_agreement.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum_of_rows(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts numbers_of(const torch::Tensor& labels) {
  const auto* const data = labels.const_data_ptr<std::int64_t>();
  return {data, data + labels.numel()};
}

}  // namespace

ClassifierExchange::ClassifierExchange(Group group, const ClassifierSettings& settings,
                                       const ClassifierRounds& rounds)
    : group_(std::move(group)), settings_(settings), rounds_(rounds) {
  const auto name = settings_.label();
  require_same_layer(group_, name, settings_.facts());
  static std::atomic<std::int64_t> made{0};
  id_ = ++made;
  group_.broadcast({&id_, 1, DType::int64}, 0, {.label = name});
}

std::string ClassifierExchange::label_of(std::string_view what) const {
  return fmt::format("{}: {}", settings_.options.name, what);
}

void ClassifierExchange::agree_on_rows(ClassifierCall& call, std::int64_t own,
                                       const std::string& problem, bool samples_classes) const {
  constexpr std::size_t kNumbers = 5;
  const std::int64_t mine[kNumbers] = {problem.empty() ? own : -1, rounds_.shard(),
                                       samples_classes ? 1 : 0, call.number, id_};
  const int size = group_.size();
  Counts all(kNumbers * static_cast<std::size_t>(size));
  group_.all_gather({mine, kNumbers, DType::int64}, {all.data(), std::ssize(all), DType::int64},
                    {.label = label_of("samples")});
  const auto of = [&](int member, std::size_t number) {
    return all[kNumbers * static_cast<std::size_t>(member) + number];
  };
  for (int member = 1; member < size; ++member) {
    if (of(member, 4) == of(0, 4)) continue;
    throw Mismatch(fmt::format(
        "{}: workers disagree: ranks {} and {} call different layers, which rank 0 has "
        "made as its number {} and {}",
        settings_.label(), group_.job_rank(0), group_.job_rank(member), of(0, 4), of(member, 4)));
  }
  const auto refusing = [&] {
    for (int member = 0; member < size; ++member) {
      if (of(member, 0) < 0) return member;
    }
    return -1;
  }();
  if (refusing >= 0) throw_problem(problem);
  for (int member = 0; member < size; ++member) {
    call.rows.push_back(of(member, 0));
    call.samples_classes.push_back(of(member, 2) != 0);
    if (of(member, 0) > 0 && rounds_.is_open()) call.shards.push_back(of(member, 1));
    if (rounds_.is_open() || (of(member, 2) == of(0, 2) && of(member, 3) == of(0, 3))) continue;
    const auto text_of = [&](int one) {
      return fmt::format("rank {} is at call {} since the last update or zero_grad(), {}",
                         group_.job_rank(one), of(one, 3) + 1,
                         of(one, 2) != 0 ? "with a sample of the classes" : "with all classes");
    };
    throw Mismatch(fmt::format("{}: workers disagree: {}; {}", settings_.label(), text_of(0),
                               text_of(member)));
  }
}

/// The InvalidArgument of a call on the members that have a problem, PeerFailed on the others.
void ClassifierExchange::throw_problem(const std::string& problem) const {
  const auto all = gather_texts(group_, problem, {.label = label_of("refusals")});
  if (!problem.empty()) throw InvalidArgument(settings_.label() + ": " + problem);
  const auto refusing = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  const int rank = group_.job_rank(static_cast<int>(refusing - all.begin()));
  throw PeerFailed(
      rank, rounds_.number(),
      fmt::format("{}: rank {} refuses the call: {}", settings_.label(), rank, *refusing));
}

torch::Tensor ClassifierExchange::gather_rows(const torch::Tensor& own, const Counts& rows,
                                              const char* what) const {
  auto sizes = own.sizes().vec();
  sizes[0] = sum_of_rows(rows);
  auto all = torch::empty(sizes, own.options());
  Counts counts = rows;
  for (auto& count : counts) count *= own.dim() > 1 ? own.size(1) : 1;
  group_.all_gather_variable(view_of(own), view_of(all), counts, {.label = label_of(what)});
  return all;
}

LeafSamples ClassifierExchange::leaf_of(torch::Tensor features, const torch::Tensor& labels,
                                        std::uint64_t key, bool samples_classes) const {
  LeafSamples leaf{.features = std::move(features),
                   .labels = numbers_of(labels),
                   .key = key,
                   .samples_classes = samples_classes,
                   .inputs = {}};
  leaf.taking_part = settings_.taking_part(leaf.labels, samples_classes);
  leaf.inputs = inputs_of(leaf.features, settings_.options.margin);
  return leaf;
}

void ClassifierExchange::gather_leaves(ClassifierCall& call, const torch::Tensor& features,
                                       const torch::Tensor& labels, std::uint64_t key) const {
  call.leaf_of.assign(call.rows.size(), -1);
  call.offsets.assign(call.rows.size(), 0);
  const auto all = sum_of_rows(call.rows);
  if (all == 0) return;
  const auto all_features = gather_rows(features, call.rows, "features");
  const auto all_labels = gather_rows(labels, call.rows, "labels");
  std::int64_t begin = 0;
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    if (call.rows[member] == 0) continue;
    if (rounds_.is_open()) {
      const auto shard = call.shards[call.leaves.size()];
      call.leaf_of[member] = std::ssize(call.leaves);
      call.leaves.push_back(leaf_of(all_features.narrow(0, begin, call.rows[member]).clone(),
                                    all_labels.narrow(0, begin, call.rows[member]),
                                    leaf_seed(settings_.options.seed, rounds_.number(), shard + 1),
                                    call.samples_classes[member]));
    } else {
      call.leaf_of[member] = 0;
      call.offsets[member] = begin;
    }
    begin += call.rows[member];
  }
  if (rounds_.is_open()) return;
  call.leaves.push_back(leaf_of(all_features, all_labels, key, call.samples_classes.front()));
}

torch::Tensor ClassifierExchange::exchange_sums(
    const ClassifierCall& call, const std::vector<std::vector<torch::Tensor>>& nodes) const {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto columns = ClassSums::columns(settings_.features);
  // A sample's sums, and behind those of a member's samples the sums of weights.
  const auto rows_for = [&](std::size_t member) {
    return call.rows[member] == 0 ? 0 : call.rows[member] + 1;
  };
  std::vector<Block> blocks;
  Counts given;
  Counts taken;
  std::vector<torch::Tensor> parts;
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(static_cast<int>(member), group_.size());
    const auto theirs = blocks_of_range(first, last);
    blocks.insert(blocks.end(), theirs.begin(), theirs.end());
    given.push_back(0);
    taken.push_back(static_cast<std::int64_t>(theirs.size()) * rows_for(rank) * columns);
    if (rows_for(member) == 0) continue;
    for (const auto& node : nodes[static_cast<std::size_t>(call.leaf_of[member])]) {
      parts.push_back(node.narrow(0, call.offsets[member], call.rows[member]));
      parts.push_back(node.narrow(0, node.size(0) - 1, 1));
      given.back() += rows_for(member) * columns;
    }
  }
  const auto options = torch::TensorOptions(settings_.computed);
  const auto in = parts.empty() ? torch::empty({0, columns}, options) : torch::cat(parts);
  const auto count = static_cast<std::int64_t>(blocks.size());
  auto out = torch::empty({count, rows_for(rank), columns}, options);
  group_.all_to_all_variable(view_of(in), given, view_of(out), taken, {.label = label_of("sums")});
  if (rows_for(rank) == 0) return {};
  std::vector<torch::Tensor> mine;
  for (std::int64_t node = 0; node < count; ++node) mine.push_back(out.select(0, node));
  return join_all(blocks, std::move(mine), settings_.options.pieces);
}

torch::Tensor ClassifierExchange::exchange_targets(
    const ClassifierCall& call, const std::vector<std::vector<PieceTargets>>& targets) const {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto columns = settings_.features + 3;
  Counts given(call.rows.size());
  Counts taken(call.rows.size());
  // Of the own pieces' targets, by the member that has the sample, then by piece.
  std::vector<torch::Tensor> parts;
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    if (call.rows[member] == 0) continue;
    const auto begin = call.offsets[member];
    for (const auto& [samples, rows] : targets[static_cast<std::size_t>(call.leaf_of[member])]) {
      const auto first = std::ranges::lower_bound(samples, begin);
      const auto last = std::ranges::lower_bound(samples, begin + call.rows[member]);
      if (first == last) continue;
      parts.push_back(rows.narrow(0, first - samples.begin(), last - first));
      given[member] += (last - first) * columns;
    }
  }
  // This member's samples, by the piece that has their class.
  Counts order(static_cast<std::size_t>(call.rows[rank]));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto piece_of = [&](std::int64_t sample) {
    const auto& leaf = call.leaves[static_cast<std::size_t>(call.leaf_of[rank])];
    return settings_.piece_of(leaf.labels[static_cast<std::size_t>(call.offsets[rank] + sample)]);
  };
  std::ranges::stable_sort(order, {}, piece_of);
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(static_cast<int>(member), group_.size());
    const auto from = std::ranges::lower_bound(order, first, {}, piece_of);
    const auto to = std::ranges::lower_bound(order, last, {}, piece_of);
    taken[member] = (to - from) * columns;
  }
  const auto options = torch::TensorOptions(settings_.computed);
  const auto in = parts.empty() ? torch::empty({0, columns}, options) : torch::cat(parts);
  auto came = torch::empty({call.rows[rank], columns}, options);
  group_.all_to_all_variable(view_of(in), given, view_of(came), taken,
                             {.label = label_of("own classes")});
  auto found = torch::empty_like(came);
  found.index_copy_(0, torch::tensor(order, torch::kInt64), came);
  return found;
}

}  // namespace tutti
