#include "torch/parallel_meetings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/log_line.h"
#include "kernels/fold.h"
#include "memory/memory_need.h"
#include "sync/tile_share.h"
#include "torch/data_parallel_settings.h"
#include "torch/threads.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What find_moved() has of a parameter.
enum Change : std::uint8_t { unchanged, changed, not_finite };

ParameterGroups groups_of(const Plan& plan, std::int64_t fusion) {
  std::vector<std::uint32_t> all(plan.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  return fuse(all, plan, fusion, fusion);
}

std::size_t bytes_of(const Plan& plan, const std::vector<std::uint32_t>& members) {
  std::size_t bytes = 0;
  for (const auto p : members) bytes += plan.bytes_of(p);
  return bytes;
}

SharedMemory staging_for(const Group& group, const Plan& plan, const ParameterGroups& groups,
                         const std::string& name) {
  std::size_t most = 0;
  for (const auto& members : groups) most = std::max(most, bytes_of(plan, members));
  return group.allocate(most, fmt::format("copies of \"{}\" that become one", name));
}

}  // namespace

ParallelMeetings::ParallelMeetings(const Group& group, WrappedModel model,
                                   const DataParallelOptions& options)
    : group_(group),
      model_(std::move(model)),
      options_(options),
      plan_(model_.plan(settings_of(options_))),
      groups_((require_equal_plans(group_, plan_), groups_of(plan_, options_.compression.fusion))),
      last_due_(groups_.size()),
      staging_(staging_for(group_, plan_, groups_, options_.name)),
      wide_before_(kTile * sizeof(double)),
      call_(*options_.strategy, group_.size(), kTile),
      moved_(plan_.parameters().size()),
      traffic_(plan_, groups_) {
  pin_threads();
  send_from_first_rank(group_, model_, options_.deadline);
  const auto states = static_cast<std::size_t>(options_.strategy->states());
  for (std::size_t p = 0; p < plan_.parameters().size(); ++p) {
    const auto& tensor = model_.tensor(p);
    const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
    before_.emplace_back(data, data + tensor.nbytes());
    states_.emplace_back(states, std::vector<std::byte>(plan_.bytes_of(p)));
  }
  log_info(fmt::format("data parallel: {} parameters, {} workers{}, {} per worker for the strategy",
                       model_.parameters().size(), group_.size(), text_of(settings_of(options_)),
                       format_bytes(bytes_held())));
}

std::size_t ParallelMeetings::bytes_held() const {
  std::size_t bytes = staging_.bytes();
  for (std::size_t p = 0; p < before_.size(); ++p) {
    bytes += before_[p].size() + states_[p].size() * plan_.bytes_of(p);
  }
  return bytes;
}

CollectiveOptions ParallelMeetings::waits(const char* label) const {
  return {.label = label, .deadline = options_.deadline};
}

// ---- who takes part ----

std::vector<std::uint8_t> ParallelMeetings::changes(const Members& parameters) const {
  std::vector<std::uint8_t> found;
  for (const auto p : parameters) {
    const auto& tensor = model_.tensor(p);
    const auto dtype = plan_.parameters()[p].spec.dtype;
    const auto bytes = tensor.nbytes();
    const bool same = bytes == 0 || std::memcmp(tensor.data_ptr(), before_[p].data(), bytes) == 0;
    const bool finite =
        same || std::isfinite(largest_magnitude(tensor.data_ptr(), dtype, tensor.numel()));
    found.push_back(same ? unchanged : finite ? changed : not_finite);
  }
  return found;
}

/// On any worker.
void ParallelMeetings::find_moved(const Members& due) {
  const auto mine = changes(due);
  std::vector<std::uint8_t> all(mine.size() * static_cast<std::size_t>(group_.size()));
  const auto count = static_cast<std::int64_t>(mine.size());
  group_.all_gather({mine.data(), count, DType::uint8},
                    {all.data(), static_cast<std::int64_t>(all.size()), DType::uint8},
                    waits("which parameters moved"));
  for (int r = 0; r < group_.size(); ++r) {
    for (std::size_t k = 0; k < due.size(); ++k) {
      const auto change = all[static_cast<std::size_t>(r) * mine.size() + k];
      if (change == not_finite) {
        throw BadInput(fmt::format(
            "meet() in step {} of \"{}\": parameter \"{}\" of rank {} is not finite; no copies "
            "became one",
            step_, options_.name, model_.name(due[k]), group_.job_rank(r)));
      }
      if (change == changed) moved_[due[k]] = 1;
    }
  }
}

ParallelMeetings::Members ParallelMeetings::moved_in(const Members& group, DType node_type) const {
  Members found;
  for (const auto p : group) {
    if (moved_[p] != 0 && plan_.parameters()[p].node_type == node_type) found.push_back(p);
  }
  return found;
}

// ---- becoming one ----

void ParallelMeetings::meet() {
  model_.require_all_in_place();
  ++step_;
  std::fill(moved_.begin(), moved_.end(), std::uint8_t{0});
  traffic_.begin();
  report_ = {.step = step_, .leaves = group_.size(), .weight = static_cast<double>(group_.size())};
  const auto groups = static_cast<std::int64_t>(groups_.size());
  std::vector<std::size_t> due_groups;
  Members due;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!options_.strategy->due(step_, static_cast<std::int64_t>(g), groups)) continue;
    due_groups.push_back(g);
    due.insert(due.end(), groups_[g].begin(), groups_[g].end());
  }
  for (std::size_t p = 0; p < plan_.parameters().size(); ++p) {
    report_.bytes_dense += plan_.bytes_of(p);
  }
  if (due_groups.empty()) {
    report_.parameters_skipped = static_cast<int>(plan_.parameters().size());
    return traffic_.end(false);
  }
  model_.require_unchanged_list();
  find_moved(due);
  for (const auto g : due_groups) {
    auto& traffic = traffic_.group(g);
    const auto steps = static_cast<std::uint64_t>(step_ - std::exchange(last_due_[g], step_));
    for (const auto type : {DType::float32, DType::float64}) {
      const auto members = moved_in(groups_[g], type);
      if (members.empty()) continue;
      average(members, type);
      const auto bytes = bytes_of(plan_, members);
      const auto workers = static_cast<std::uint64_t>(group_.size());
      report_.bytes += bytes;
      ++report_.buckets;
      traffic.messages = traffic.dense_messages = group_.size();
      traffic.values += group_.size() * elements_of(plan_, members);
      traffic.touched += group_.size() * elements_of(plan_, members);
      traffic.bytes += 2 * workers * bytes;
      traffic.bytes_dense += 2 * workers * bytes * steps;
    }
  }
  if (options_.buffers == Buffers::every_step) sync_buffers();
  report_.collectives = 1;
  report_.parameters_touched = static_cast<int>(std::count(moved_.begin(), moved_.end(), 1));
  report_.parameters_skipped =
      static_cast<int>(plan_.parameters().size()) - report_.parameters_touched;
  traffic_.end(report_.bytes > 0);
}

void ParallelMeetings::average(const Members& parameters, DType type) {
  std::byte* at = staging_.data();
  for (const auto p : parameters) {
    const auto& tensor = model_.tensor(p);
    scale_into(at, type, tensor.data_ptr(), plan_.parameters()[p].spec.dtype, tensor.numel(), 1.0);
    at += plan_.bytes_of(p);
  }
  group_.all_reduce({staging_.data(), elements_of(plan_, parameters), type}, Reduction::mean,
                    waits("the mean of all copies"));
  at = staging_.data();
  for (const auto p : parameters) {
    adopt(p, at);
    at += plan_.bytes_of(p);
  }
}

/// Tile by tile, while it is hot.
void ParallelMeetings::adopt(std::uint32_t parameter, std::byte* mean) {
  const auto& entry = plan_.parameters()[parameter];
  const auto& tensor = model_.tensor(parameter);
  auto* const values = static_cast<std::byte*>(tensor.data_ptr());
  const auto size = size_of(entry.spec.dtype);
  for (std::int64_t begin = 0; begin < entry.spec.count; begin += kTile) {
    const auto count = std::min(kTile, entry.spec.count - begin);
    const auto skip = static_cast<std::size_t>(begin) * size_of(entry.node_type);
    auto* const before = before_[parameter].data() + static_cast<std::size_t>(begin) * size;
    StrategyPiece piece{.type = entry.node_type,
                        .count = count,
                        .values = mean + skip,
                        .before = nullptr,
                        .states = {}};
    if (!states_[parameter].empty()) {
      scale_into(wide_before_.data(), entry.node_type, before, entry.spec.dtype, count, 1.0);
      piece.before = wide_before_.data();
    }
    for (auto& state : states_[parameter]) piece.states.push_back(state.data() + skip);
    call_.ask(entry.spec.name, piece);
    round_into(values + static_cast<std::size_t>(begin) * size, entry.spec.dtype, piece.values,
               entry.node_type, count);
    std::memcpy(before, values + static_cast<std::size_t>(begin) * size,
                static_cast<std::size_t>(count) * size);
  }
  tensor.unsafeGetTensorImpl()->bump_version();
}

void ParallelMeetings::sync_buffers() {
  for (const auto& item : model_.buffers()) {
    send_from_first_rank(group_, item, options_.deadline);
    if (group_.rank() != 0) item.second.unsafeGetTensorImpl()->bump_version();
  }
}

std::vector<std::string> ParallelMeetings::touched() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < moved_.size(); ++p) {
    if (moved_[p] != 0) names.push_back(model_.name(p));
  }
  return names;
}

}  // namespace tutti
