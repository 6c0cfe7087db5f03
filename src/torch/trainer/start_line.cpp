#include "torch/trainer/start_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/log_line.h"
#include "memory/memory_need.h"
#include "sync/plan/assignment.h"
#include "torch/device/torch_device.h"
#include "torch/shards/pipeline_settings.h"

namespace tutti {

void warn_of_aliases(const WrappedModel& model, const std::string& name) {
  const auto aliased = model.with_aliases();
  if (aliased.empty()) return;
  log_warning(fmt::format(
      "trainer \"{}\": another tensor (a view, detach(), data(), or one that a graph keeps) lies "
      "in the memory of parameter \"{}\"{}; it stays where it is and does not follow the training",
      name, aliased.front(),
      aliased.size() > 1 ? fmt::format(", and of {} more", aliased.size() - 1) : ""));
}

namespace {

/// Logs which workers have no shard in any step.
void warn_of_idle(const std::vector<ShardRange>& ranges, const TrainerOptions& options,
                  const Group& group) {
  std::string idle;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    if (ranges[r].count() == 0) idle += fmt::format(" {}", group.job_rank(static_cast<int>(r)));
  }
  if (idle.empty()) return;
  log_warning(
      fmt::format("\"{}\": of {} workers these compute no shard:{}; a step has {} of them "
                  "(TrainerOptions::shards), and whoever has the most computes {}",
                  options.name, group.size(), idle, options.shards,
                  std::ranges::max(ranges, {}, &ShardRange::count).count()));
}

void warn_of_unused_groups(const StartLine& start) {
  for (const auto k : start.optimizer.unused_groups(start.model.all_names())) {
    log_warning(fmt::format(
        "group {} of the optimizer of \"{}\" holds for none of its parameters, or for those of "
        "earlier groups alone",
        k + 1, start.options.name));
  }
}

/// Sums of gradients that a worker has at most, the shard's own counted.
std::size_t most_nodes(const StartLine& start) {
  int nodes = 0;
  for (const auto& range : assignment_of(start.options, start.group.size())) {
    nodes = std::max(nodes, nodes_in_flight(range));
  }
  return static_cast<std::size_t>(nodes);
}

/// No refusal: what a step does not touch takes nothing.
void warn_of_room(const StartLine& start) {
  const auto free = free_bytes_on(start.model.device());
  if (!free) return;
  std::size_t largest = 0;
  for (const auto& item : start.model.parameters()) {
    largest = std::max(largest, item.second.nbytes());
  }
  const auto held = (most_nodes(start) - 1) * start.node_bytes + largest;
  if (*free >= held) return;
  log_warning(fmt::format(
      "trainer \"{}\": a step that touches all parameters needs {} for gradients and their sums on "
      "{}, beside activations, and {} are free there: more workers on other devices, or fewer "
      "shards, need less (docs/gpu.md#memory)",
      start.options.name, format_bytes(held), start.model.device().str(), format_bytes(*free)));
}

/// Where the model is, and what it takes there and on the host.
std::string text_of_device(const StartLine& start) {
  if (start.model.device().is_cpu()) return "";
  std::size_t bytes = 0;
  for (const auto& item : start.model.parameters()) bytes += item.second.nbytes();
  return fmt::format(
      ", on {} by deterministic operators alone: {} of parameters for each worker there, and up to "
      "{} of gradients and their sums while a step runs; {} of parameters and optimizer state on "
      "each host, "
      "updated by {} thread{} of each worker",
      start.model.device().str(), format_bytes(bytes),
      format_bytes(most_nodes(start) * start.node_bytes), format_bytes(start.host_bytes),
      start.threads, start.threads == 1 ? "" : "s");
}

/// Facts about this program, by which runs are not distinguished.
std::string own_text(const StartLine& start) {
  const auto& options = start.options;
  std::string own;
  if (!options.log.empty()) {
    own += fmt::format(", log {} (metrics every {})", options.log, options.metrics_every);
  }
  if (start.coded != nullptr) {
    own += fmt::format(", {} for messages and residuals of each logical worker, {} of each worker",
                       format_bytes(start.coded->bytes_per_logical_worker()),
                       format_bytes(start.coded->bytes_per_worker()));
  }
  if (start.row_sparse > 0) own += fmt::format(", {} row-sparse parameters", start.row_sparse);
  if (start.replicas != nullptr) own += start.replicas->text();
  if (start.model.owned() > 0) {
    own += fmt::format(", {} parameters with an owner", start.model.owned());
  }
  if (options.deadline) own += fmt::format(", deadline {} ms", options.deadline->count());
  return own;
}

}  // namespace

void log_start(const StartLine& start) {
  warn_of_unmatched(start.model, start.options.name, start.group);
  if (start.group.rank() != 0) return;
  warn_of_unused_groups(start);
  const auto ranges = assignment_of(start.options, start.group.size());
  warn_of_idle(ranges, start.options, start.group);
  warn_of_room(start);
  std::string shares;
  for (const auto& range : ranges) shares += fmt::format(" [{}, {})", range.begin, range.end);
  log_info(
      fmt::format("trainer: {} parameters, {} workers, {} shards in a step{}; TUTTI_LOG=debug "
                  "shows all settings",
                  start.model.parameters().size(), start.group.size(), start.options.shards,
                  text_of_device(start)));
  log_debug(
      fmt::format("all settings of the trainer: {} parameters, {} workers, their shards{}{}{}",
                  start.model.parameters().size(), start.group.size(), shares, start.settings,
                  own_text(start)));
}

}  // namespace tutti
