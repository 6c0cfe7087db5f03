#include "torch/data_parallel/parallel_averaging.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "kernels/fold.h"
#include "memory/memory_need.h"
#include "sync/plan/tile_share.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/threads.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What a worker says of a parameter that is due.
enum class Change : std::uint8_t { none, moved, not_finite };

Buckets groups_of(const Plan& plan, std::int64_t fusion) {
  std::vector<std::uint32_t> all(plan.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  return fuse(all, plan, fusion, fusion);
}

std::size_t bytes_of(const Plan& plan, const std::vector<std::uint32_t>& members) {
  std::size_t bytes = 0;
  for (const auto p : members) bytes += plan.bytes_of(p);
  return bytes;
}

bool is_finite(const void* data, DType type, std::int64_t count) {
  return std::isfinite(largest_magnitude(data, type, count));
}

}  // namespace

ParallelAveraging::Layout::Layout(const Plan& plan, const Buckets& groups, int states) {
  const auto take = [this](std::size_t size) {
    const auto at = bytes;
    bytes += (size + 63) / 64 * 64;
    return at;
  };
  std::size_t most = 0;
  for (const auto& members : groups) most = std::max(most, bytes_of(plan, members));
  take(most);
  for (std::size_t p = 0; p < plan.parameters().size(); ++p) {
    const auto& spec = plan.parameters()[p].spec;
    auto& place = places.emplace_back();
    place.before = take(static_cast<std::size_t>(spec.count) * size_of(spec.dtype));
    for (int k = 0; k < states; ++k) place.states.push_back(take(plan.bytes_of(p)));
  }
}

ParallelAveraging::ParallelAveraging(const Group& group, WrappedModel model,
                                     const DataParallelOptions& options)
    : group_(group),
      model_(std::move(model)),
      options_(options),
      plan_(model_.plan(settings_of(options_))),
      groups_((require_equal_plans(group_, plan_), groups_of(plan_, options_.compression.fusion))),
      layout_(plan_, groups_, options_.averaging->states()),
      memory_(group_.allocate(
          layout_.bytes,
          fmt::format("what {} keeps of \"{}\"", options_.averaging->name(), options_.name))),
      wide_before_(kTile * sizeof(double)),
      call_(*options_.averaging, group_.size(), kTile),
      last_due_(groups_.size(), options_.first_step - 1),
      moved_(plan_.parameters().size()),
      traffic_(plan_, groups_),
      step_(options_.first_step - 1) {
  pin_threads();
  for (const auto& item : model_.parameters()) ParameterHooks::forget(item.second);
  send_from_first_rank(group_, model_.parameters(), options_.deadline);
  send_from_first_rank(group_, model_.buffers(), options_.deadline);
  for (std::size_t p = 0; p < layout_.places.size(); ++p) {
    const auto& tensor = model_.tensor(p);
    if (tensor.numel() == 0) continue;
    std::memcpy(memory_.data() + layout_.places[p].before, tensor.data_ptr(), tensor.nbytes());
  }
  if (group_.rank() != 0) return;
  log_info(
      fmt::format("data parallel: {} parameters, {} workers{}, {} per worker for the averaging",
                  model_.parameters().size(), group_.size(), text_of(settings_of(options_)),
                  format_bytes(bytes_held())));
}

ParallelAveraging::~ParallelAveraging() {
  if (step_ >= options_.first_step || std::uncaught_exceptions() > 0) return;
  log_warning(
      fmt::format("data parallel \"{}\": averaging {}, but average_parameters() was never called: "
                  "each worker trained a model "
                  "of its own",
                  options_.name, options_.averaging->name()));
}

CollectiveOptions ParallelAveraging::waits(const char* label) const {
  return {.label = label, .deadline = options_.deadline};
}

// ---- who takes part ----

/// A byte for each.
std::vector<std::byte> ParallelAveraging::changes(const Members& due) const {
  model_.require_all_in_place();
  model_.require_unchanged_list();
  std::vector<std::byte> found;
  for (const auto p : due) {
    const auto& tensor = model_.tensor(p);
    const auto* const before = memory_.data() + layout_.places[p].before;
    auto change = Change::none;
    if (tensor.numel() > 0 && std::memcmp(tensor.data_ptr(), before, tensor.nbytes()) != 0) {
      const auto type = plan_.parameters()[p].spec.dtype;
      change =
          is_finite(tensor.data_ptr(), type, tensor.numel()) ? Change::moved : Change::not_finite;
    }
    found.push_back(static_cast<std::byte>(change));
  }
  return found;
}

/// What each worker has to say; the report gets to know who was last.
std::vector<std::vector<std::byte>> ParallelAveraging::gather(std::vector<std::byte> mine) {
  const auto& system = group_.state()->job().system();
  const auto arrived = system.now();
  const auto ticks = arrived.time_since_epoch().count();
  const auto* const first = reinterpret_cast<const std::byte*>(&ticks);
  mine.insert(mine.end(), first, first + sizeof ticks);
  // Workers that are in different steps find out by the label.
  const auto label = fmt::format("average_parameters() in step {}", step_);
  auto all = gather_bytes(group_, mine, waits(label.c_str()));
  report_.waits = 1;
  report_.wait_seconds = std::chrono::duration<double>(system.now() - arrived).count();
  auto last = ticks;
  report_.last_worker = group_.job_rank(group_.rank());
  for (int r = 0; r < group_.size(); ++r) {
    auto& said = all[static_cast<std::size_t>(r)];
    auto his = ticks;
    std::memcpy(&his, said.data() + said.size() - sizeof his, sizeof his);
    said.resize(said.size() - sizeof his);
    if (his <= last) continue;
    last = his;
    report_.last_worker = group_.job_rank(r);
  }
  return all;
}

/// On any worker. One that cannot say it says why.
void ParallelAveraging::find_moved(const Members& due) {
  std::vector<std::byte> mine;
  std::exception_ptr error;
  try {
    mine = changes(due);
    mine.push_back(std::byte{0});
  } catch (...) {
    error = std::current_exception();
    const auto text = exception_text();
    mine.assign(reinterpret_cast<const std::byte*>(text.data()),
                reinterpret_cast<const std::byte*>(text.data() + text.size()));
    mine.push_back(std::byte{1});
  }
  const auto all = gather(std::move(mine));
  if (error) std::rethrow_exception(error);
  for (int r = 0; r < group_.size(); ++r) {
    const auto& said = all[static_cast<std::size_t>(r)];
    if (said.back() == std::byte{0}) continue;
    throw PeerFailed(
        group_.job_rank(r), step_,
        fmt::format("average_parameters() in step {} of \"{}\": rank {} failed: {}", step_,
                    options_.name, group_.job_rank(r),
                    std::string(reinterpret_cast<const char*>(said.data()), said.size() - 1)));
  }
  std::vector<std::uint8_t> moved(moved_.size());
  for (int r = 0; r < group_.size(); ++r) {
    for (std::size_t k = 0; k < due.size(); ++k) {
      const auto change = static_cast<Change>(all[static_cast<std::size_t>(r)][k]);
      if (change == Change::not_finite) {
        throw Diverged(
            fmt::format("average_parameters() in step {} of \"{}\": parameter \"{}\" of rank {} is "
                        "not finite; no copies "
                        "became one",
                        step_, options_.name, model_.name(due[k]), group_.job_rank(r)));
      }
      if (change == Change::moved) moved[due[k]] = 1;
    }
  }
  moved_ = std::move(moved);
}

ParallelAveraging::Members ParallelAveraging::moved_in(const Members& group,
                                                       DType node_type) const {
  Members found;
  for (const auto p : group) {
    if (moved_[p] != 0 && plan_.parameters()[p].node_type == node_type) found.push_back(p);
  }
  return found;
}

// ---- becoming one ----

void ParallelAveraging::average_parameters(std::optional<std::int64_t> step) {
  if (ended_) std::rethrow_exception(ended_);
  if (step && *step != step_ + 1) {
    throw InvalidArgument(
        fmt::format("average_parameters({}): the step that ends is {}; average_parameters() is "
                    "called at the end of each",
                    *step, step_ + 1));
  }
  ++step_;
  std::fill(moved_.begin(), moved_.end(), std::uint8_t{0});
  traffic_.begin();
  report_ = {.step = step_, .parameters_skipped = static_cast<int>(plan_.parameters().size())};
  for (std::size_t p = 0; p < plan_.parameters().size(); ++p) {
    report_.dense_bytes += plan_.bytes_of(p);
  }
  std::vector<std::size_t> due_groups;
  Members due;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!options_.averaging->due(step_, static_cast<std::int64_t>(g),
                                 static_cast<std::int64_t>(groups_.size()))) {
      continue;
    }
    due_groups.push_back(g);
    due.insert(due.end(), groups_[g].begin(), groups_[g].end());
  }
  if (!due_groups.empty()) {
    find_moved(due);
    try {
      for (const auto g : due_groups) become_one(g);
      if (options_.buffers == Buffers::every_step) sync_buffers();
    } catch (...) {
      ended_ = std::current_exception();
      throw;
    }
  }
  report_.collectives = report_.max_sent_bytes > 0 ? 1 : 0;
  report_.parameters_touched = static_cast<int>(std::count(moved_.begin(), moved_.end(), 1));
  report_.parameters_skipped -= report_.parameters_touched;
  traffic_.end(report_.collectives);
}

/// A group's parameters of one type at a time.
void ParallelAveraging::become_one(std::size_t group) {
  auto& traffic = traffic_.bucket(group);
  const auto workers = static_cast<std::uint64_t>(group_.size());
  const auto steps = static_cast<std::uint64_t>(step_ - std::exchange(last_due_[group], step_));
  for (const auto type : {DType::float32, DType::float64}) {
    const auto members = moved_in(groups_[group], type);
    if (members.empty()) continue;
    average(members, type);
    const auto bytes = bytes_of(plan_, members);
    report_.max_sent_bytes += bytes;
    ++report_.buckets;
    traffic.messages = traffic.dense_messages = group_.size();
    traffic.values += group_.size() * elements_of(plan_, members);
    traffic.touched += group_.size() * elements_of(plan_, members);
    traffic.bytes += 2 * workers * bytes;
    traffic.bytes_dense += 2 * workers * bytes * steps;
  }
}

void ParallelAveraging::average(const Members& parameters, DType type) {
  std::byte* at = memory_.data();
  for (const auto p : parameters) {
    const auto& tensor = model_.tensor(p);
    scale_into(at, type, tensor.data_ptr(), plan_.parameters()[p].spec.dtype, tensor.numel(), 1.0);
    at += plan_.bytes_of(p);
  }
  group_.all_reduce({memory_.data(), elements_of(plan_, parameters), type}, Reduction::mean,
                    waits("the mean of all copies"));
  at = memory_.data();
  for (const auto p : parameters) {
    adopt(p, at);
    at += plan_.bytes_of(p);
  }
}

/// Tile by tile, while it is hot.
void ParallelAveraging::adopt(std::uint32_t parameter, std::byte* mean) {
  const auto& entry = plan_.parameters()[parameter];
  const auto& place = layout_.places[parameter];
  const auto& tensor = model_.tensor(parameter);
  const auto size = size_of(entry.spec.dtype);
  for (std::int64_t begin = 0; begin < entry.spec.count; begin += kTile) {
    const auto count = std::min(kTile, entry.spec.count - begin);
    const auto wide_skip = static_cast<std::size_t>(begin) * size_of(entry.node_type);
    const auto skip = static_cast<std::size_t>(begin) * size;
    auto* const before = memory_.data() + place.before + skip;
    auto* const values = static_cast<std::byte*>(tensor.data_ptr()) + skip;
    PolicyPiece piece{.type = entry.node_type,
                      .count = count,
                      .values = mean + wide_skip,
                      .before = nullptr,
                      .states = {}};
    if (!place.states.empty()) {
      scale_into(wide_before_.data(), entry.node_type, before, entry.spec.dtype, count, 1.0);
      piece.before = wide_before_.data();
    }
    for (const auto state : place.states) {
      piece.states.push_back(memory_.data() + state + wide_skip);
    }
    call_.ask(entry.spec.name, piece);
    round_into(values, entry.spec.dtype, piece.values, entry.node_type, count);
    const bool rounded = entry.spec.dtype != entry.node_type;
    if (rounded && !is_finite(values, entry.spec.dtype, count)) {
      throw Mismatch(
          fmt::format("averaging {}, parameter \"{}\": what its copies become is beyond {}",
                      options_.averaging->name(), entry.spec.name, name_of(entry.spec.dtype)));
    }
    std::memcpy(before, values, static_cast<std::size_t>(count) * size);
  }
  tensor.unsafeGetTensorImpl()->bump_version();
}

void ParallelAveraging::sync_buffers() {
  send_from_first_rank(group_, model_.buffers(), options_.deadline);
}

std::vector<std::string> ParallelAveraging::touched() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < moved_.size(); ++p) {
    if (moved_[p] != 0) names.push_back(model_.name(p));
  }
  return names;
}

}  // namespace tutti
