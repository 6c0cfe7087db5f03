#include "torch/data_parallel/placed_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log_line.h"
#include "torch/model/real_numbers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::vector<std::uint32_t> list_owned(const StepExchange& exchange) {
  std::vector<std::uint32_t> owned;
  for (std::uint32_t p = 0; p < exchange.plan().parameters().size(); ++p) {
    if (exchange.owner_of(p) >= 0) owned.push_back(p);
  }
  return owned;
}

Buckets each_alone(const std::vector<std::uint32_t>& parameters) {
  Buckets groups;
  for (const auto p : parameters) groups.push_back({p});
  return groups;
}

}  // namespace

PlacedParameters::PlacedParameters(const WrappedModel& model, StepExchange& exchange,
                                   const RowGradients& rows)
    : model_(model),
      exchange_(exchange),
      slices_(exchange.nodes()),
      rows_(rows),
      owned_(list_owned(exchange)),
      traffic_(exchange.plan(), each_alone(owned_)) {}

PlacedParameters::~PlacedParameters() {
  if (unsent_.empty() || std::uncaught_exceptions() > 0) return;
  log_warning(fmt::format(
      "\"{}\" has an owner, whose last update was not sent: broadcast_placed() was not called "
      "after the last step",
      model_.name(unsent_.begin()->first)));
}

void PlacedParameters::apply(const StepFacts&) {
  touched_.clear();
  const auto& nodes = exchange_.nodes();
  for (const auto p : owned_) {
    if (!nodes.touched(p)) continue;
    auto& rows = touched_[p];
    if (model_.row_sparse(p)) {
      const auto list = rows_.kept(exchange_.owner_of(p), p).rows;
      rows.assign(list.begin(), list.end());
    } else if (exchange_.is_updated_here(p)) {
      const auto& spec = exchange_.plan().parameters()[p].spec;
      void* const to = exchange_.nodes().result(p);
      slices_.fold(nodes.sources_of(p), 0, spec.count, spec.dtype, {&to, 1});
    }
  }
}

void PlacedParameters::commit(StepFacts&) {
  unsent_ = std::move(touched_);
  traffic_.begin();
}

void PlacedParameters::require_sent() const {
  if (unsent_.empty()) return;
  throw InvalidArgument(
      fmt::format("\"{}\" has an owner, whose update in step {} was not sent: call "
                  "broadcast_placed() after the "
                  "optimizer's step",
                  model_.name(unsent_.begin()->first), exchange_.protocol().last_number()));
}

void PlacedParameters::send(const std::optional<std::chrono::milliseconds>& deadline) {
  exchange_.protocol().require_running();
  if (owned_.empty()) throw InvalidArgument("broadcast_placed(), but no parameter has an owner");
  if (unsent_.empty()) return;
  const torch::NoGradGuard no_grad;
  const auto unsent = std::exchange(unsent_, {});
  const auto& group = exchange_.group();
  exchange_.protocol().run_collectives([&] {
    for (const auto& [p, rows] : unsent) {
      torch::Tensor tensor = model_.tensor(p);
      const auto owner = exchange_.owner_of(p);
      const auto chosen = torch::tensor(rows, torch::kInt64);
      const auto values = model_.row_sparse(p) ? tensor.index_select(0, chosen) : tensor;
      const auto line = std::lower_bound(owned_.begin(), owned_.end(), p) - owned_.begin();
      auto& traffic = traffic_.bucket(static_cast<std::size_t>(line));
      traffic.messages = 1;
      traffic.dense_messages = model_.row_sparse(p) ? 0 : 1;
      traffic.values = traffic.touched = count_of_reals(values);
      const auto workers = static_cast<std::uint64_t>(group.size());
      traffic.bytes = workers * values.nbytes();
      traffic.bytes_dense = workers * tensor.nbytes();
      group.broadcast({values.data_ptr(), static_cast<std::int64_t>(values.nbytes()), DType::uint8},
                      owner, {.label = model_.name(p), .deadline = deadline});
      if (group.rank() == owner) continue;
      if (model_.row_sparse(p)) tensor.index_copy_(0, chosen, values);
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  });
  traffic_.end(0);
}

void PlacedParameters::add_traffic(TrafficReport& report) const {
  auto sent = traffic_.report();
  for (const auto list : {&TrafficReport::last_step, &TrafficReport::all_steps}) {
    for (auto& group : sent.*list) group.parameters += ", sent by its owner";
  }
  report = merged(std::move(report), sent);
}

}  // namespace tutti
