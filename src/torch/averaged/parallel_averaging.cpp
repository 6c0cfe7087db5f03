#include "torch/averaged/parallel_averaging.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/error_kind.h"
#include "base/log_line.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "memory/memory_need.h"
#include "sync/plan/tile_share.h"
#include "torch/model/arithmetic.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/settings.h"
#include "torch/model/threads.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What a worker finds in a parameter that is due.
enum class Change : std::uint8_t { none, moved, not_finite };

/// The settings besides the model that have to be the same on all workers.
Settings settings_of(const AveragingPolicy& policy, const AveragedParallelOptions& options) {
  return {{"wrapper", "AveragedParallel"},
          {"name", options.name},
          {"torch", TORCH_VERSION},
          {"instruction set", instruction_set()},
          {"intra-op threads", std::to_string(at::get_num_threads())},
          {"buffers", options.sync_buffers ? "every round" : "on request"},
          {"averaging", fmt::format("{}, groups of {}", policy.name(), options.fusion)},
          {"first_step", std::to_string(options.first_step)}};
}

/// The same on all workers, or Mismatch. The number of threads, which is in it, is pinned before.
Plan equal_plan(const Group& group, const WrappedModel& model, const AveragingPolicy& policy,
                const AveragedParallelOptions& options) {
  pin_threads(*group.state());
  auto plan = model.plan(settings_of(policy, options));
  require_equal_plans(group, plan);
  return plan;
}

/// Parameters that are not averaged are not in the plan.
std::vector<std::uint32_t> all_parameters(const Plan& plan) {
  std::vector<std::uint32_t> all(plan.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

std::vector<std::byte*> values_of(const WrappedModel& model, const HostCopies* host) {
  std::vector<std::byte*> values;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto& tensor = host != nullptr ? host->of_parameter(p) : model.tensor(p);
    values.push_back(static_cast<std::byte*>(tensor.data_ptr()));
  }
  return values;
}

}  // namespace

ParallelAveraging::ParallelAveraging(const Group& group, WrappedModel model,
                                     AveragingPolicyPointer policy,
                                     const AveragedParallelOptions& options)
    : group_(group),
      model_(std::move(model)),
      policy_(std::move(policy)),
      options_(options),
      plan_(equal_plan(group_, model_, *policy_, options_)),
      host_(model_.device().is_cpu()
                ? nullptr
                : std::make_unique<HostCopies>(model_, group_, options_.deadline, options_.name)),
      rounds_(plan_, *policy_, all_parameters(plan_), options_.fusion,
              static_cast<std::size_t>(group_.size())),
      copies_(group_, plan_, *policy_, rounds_.buckets(), values_of(model_, host_.get()),
              options_.name),
      changed_(plan_.parameters().size()),
      last_due_(rounds_.buckets().size(), options_.first_step - 1),
      step_(options_.first_step - 1) {
  for (const auto& item : model_.parameters()) ParameterHooks::forget(item.second);
  send_from_first_rank(group_, model_.parameters(), options_.deadline);
  send_from_first_rank(group_, model_.buffers(), options_.deadline);
  if (host_) host_->fetch_parameters();
  copies_.restart();
  if (group_.rank() != 0) return;
  log_info(fmt::format(
      "data parallel: {} parameters, {} workers, averaging {}; TUTTI_LOG=debug shows all "
      "settings",
      model_.parameters().size(), group_.size(), policy_->name()));
  log_debug(
      fmt::format("all settings of data parallel: {} parameters, {} workers{}, {} per worker "
                  "for the averaging",
                  model_.parameters().size(), group_.size(),
                  text_of(settings_of(*policy_, options_)), format_bytes(bytes_held())));
}

ParallelAveraging::~ParallelAveraging() {
  if (step_ >= options_.first_step || std::uncaught_exceptions() > 0) return;
  log_warning(
      fmt::format("data parallel \"{}\": averaging {}, but average_parameters() was never called: "
                  "each worker trained a model "
                  "of its own",
                  options_.name, policy_->name()));
}

CollectiveOptions ParallelAveraging::waits(const char* label) const {
  return {.label = label, .deadline = options_.deadline};
}

// ---- which parameters moved ----

void ParallelAveraging::require_unchanged() const {
  model_.require_all_in_place();
  model_.require_unchanged_list();
}

/// A Change for each.
std::vector<std::byte> ParallelAveraging::changes(const Members& due) {
  require_unchanged();
  if (host_) host_->fetch_parameters(due);
  std::vector<std::byte> found;
  for (const auto p : due) {
    auto change = Change::none;
    if (copies_.has_moved(p)) {
      change = copies_.is_finite(p) ? Change::moved : Change::not_finite;
    }
    found.push_back(static_cast<std::byte>(change));
  }
  return found;
}

/// Sends `mine` to all workers, with the time: the report has who came last.
std::vector<std::vector<std::byte>> ParallelAveraging::gather(std::vector<std::byte> mine) {
  const auto& system = group_.state()->job().system();
  const auto arrived = system.now();
  const auto ticks = arrived.time_since_epoch().count();
  append(mine, ticks);
  // Workers that are in different steps find out by the label.
  const auto label = fmt::format("average_parameters() in step {}", step_);
  auto all = gather_bytes(group_, mine, waits(label.c_str()));
  report_.waits = 1;
  report_.wait_seconds = std::chrono::duration<double>(system.now() - arrived).count();
  auto last = ticks;
  report_.last_worker = group_.job_rank(group_.rank());
  for (int r = 0; r < group_.size(); ++r) {
    auto& message = all[static_cast<std::size_t>(r)];
    auto time = ticks;
    std::memcpy(&time, message.data() + message.size() - sizeof time, sizeof time);
    message.resize(message.size() - sizeof time);
    if (time <= last) continue;
    last = time;
    report_.last_worker = group_.job_rank(r);
  }
  return all;
}

/// Notes what moved on some worker. A worker that cannot look sends the reason instead: its last
/// byte tells the two apart.
void ParallelAveraging::find_moved(const Members& due) {
  std::vector<std::byte> mine;
  std::exception_ptr error;
  try {
    mine = changes(due);
    mine.push_back(std::byte{0});
  } catch (...) {
    error = std::current_exception();
    mine.clear();
    append_all(mine, exception_text());
    mine.push_back(std::byte{1});
  }
  const auto all = gather(std::move(mine));
  if (error) std::rethrow_exception(error);
  for (int r = 0; r < group_.size(); ++r) {
    const auto& message = all[static_cast<std::size_t>(r)];
    if (message.back() == std::byte{0}) continue;
    throw PeerFailed(group_.job_rank(r), step_,
                     fmt::format("average_parameters() in step {} of \"{}\": rank {} failed: {}",
                                 step_, options_.name, group_.job_rank(r),
                                 text_of(std::span(message).first(message.size() - 1))));
  }
  Members moved;
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
      if (change == Change::moved) moved.push_back(due[k]);
    }
  }
  for (const auto p : moved) rounds_.note_moved(p);
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
  rounds_.begin(step_);
  std::ranges::fill(changed_, 0);
  report_ = {.step = step_, .parameters_skipped = static_cast<int>(plan_.parameters().size())};
  for (std::size_t p = 0; p < plan_.parameters().size(); ++p) {
    report_.dense_bytes += plan_.bytes_of(p);
  }
  Members due;
  for (const auto b : rounds_.due_buckets()) {
    due.insert(due.end(), rounds_.buckets()[b].begin(), rounds_.buckets()[b].end());
  }
  Members arriving;
  std::ranges::copy_if(all_parameters(plan_), std::back_inserter(arriving),
                       [this](auto p) { return rounds_.arrives(p); });
  if (!due.empty()) {
    find_moved(due);
  } else if (!arriving.empty()) {
    require_unchanged();
  }
  try {
    receive(arriving);
    for (const auto b : rounds_.due_buckets()) average(b);
    if (host_) host_->give_parameters(changed_);
    if (!due.empty() && options_.sync_buffers) sync_buffers();
  } catch (...) {
    ended_ = std::current_exception();
    throw;
  }
  rounds_.commit();
  if (host_) host_->report(report_);
  report_.collectives = report_.max_sent_bytes > 0 ? 1 : 0;
  report_.parameters_touched = static_cast<int>(std::ranges::count_if(
      all_parameters(plan_), [this](auto p) { return rounds_.is_averaged(p); }));
  report_.parameters_skipped -= report_.parameters_touched;
}

ParallelAveraging::Members ParallelAveraging::sent_in(std::size_t bucket, DType node_type) const {
  Members found;
  for (const auto p : rounds_.buckets()[bucket]) {
    if (rounds_.is_sent(p) && plan_.parameters()[p].node_type == node_type) found.push_back(p);
  }
  return found;
}

/// What is given to a device counts there.
void ParallelAveraging::note_changed(std::uint32_t parameter) {
  changed_[parameter] = 1;
  if (!host_) model_.tensor(parameter).unsafeGetTensorImpl()->bump_version();
}

/// Applies means that were in flight.
void ParallelAveraging::receive(const Members& arriving) {
  if (host_) host_->fetch_parameters(arriving);
  for (const auto p : arriving) {
    for (const auto& tile : tiles_of({p, 0, plan_.parameters()[p].spec.count})) {
      rounds_.receive(tile, copies_);
    }
    note_changed(p);
  }
}

/// An all-reduce is of one type.
void ParallelAveraging::average(std::size_t bucket) {
  const auto steps = step_ - std::exchange(last_due_[bucket], step_);
  for (const auto type : {DType::float32, DType::float64}) {
    const auto members = sent_in(bucket, type);
    if (members.empty()) continue;
    copies_.all_reduce(members, waits("the mean of all copies"));
    for (const auto p : members) {
      for (const auto& tile : tiles_of({p, 0, plan_.parameters()[p].spec.count})) {
        rounds_.send(tile, copies_);
      }
      note_changed(p);
    }
    for (const auto p : members) {
      rounds_.count_averaged(p, 0, copies_.messages_back());
      rounds_.count_gradients(p, group_.size(), steps);
    }
    report_.max_sent_bytes = rounds_.bytes();
    ++report_.buckets;
  }
}

void ParallelAveraging::sync_buffers() {
  send_from_first_rank(group_, model_.buffers(), options_.deadline);
}

std::vector<std::string> ParallelAveraging::touched() const {
  std::vector<std::string> names;
  for (const auto p : all_parameters(plan_)) {
    if (rounds_.is_averaged(p)) names.push_back(model_.name(p));
  }
  return names;
}

}  // namespace tutti
