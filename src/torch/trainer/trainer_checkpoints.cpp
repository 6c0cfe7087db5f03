#include "torch/trainer/trainer_checkpoints.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error_kind.h"
#include "base/log_line.h"
#include "comm/group_state.h"
#include "job/end_request.h"
#include "torch/model/arithmetic.h"
#include "torch/optim/torch_rule.h"
#include "torch/run/model_facts.h"
#include "tutti/error.h"

namespace tutti {

namespace {

/// Learning rates of the groups, and last that of all other parameters.
std::vector<double> rates_of(const Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& rule : optimizer.rules()) {
    rates.push_back(std::visit(
        [](const auto& one) {
          if constexpr (std::is_same_v<decltype(one), const TorchOptim&>) {
            return one.rule->learning_rate();
          } else {
            return one.lr;
          }
        },
        rule));
  }
  return rates;
}

}  // namespace

TrainerCheckpoints::TrainerCheckpoints(const BetweenSteps& between, TrainerWorld& world,
                                       RunState& state, RunFingerprint facts)
    : between_(between),
      world_(world),
      options_(world.options),
      state_(state),
      facts_(std::move(facts)) {
  const auto look = [&](const char* at, const std::string& path, const auto& check) {
    if (path.empty()) return;
    const auto error = between_.on_first_rank(at, check);
    if (error) std::rethrow_exception(error);
  };
  look("the step log", options_.log, [&] { StepLog::check(*host_files(), options_.log); });
  look("the folder for curves", options_.tensorboard, [&] {
    if (!world_.curves_lock) world_.curves_lock = lock_curves(options_.tensorboard);
  });
}

const std::string& TrainerCheckpoints::run() const {
  return between_.group().state()->job().identity().run;
}

void TrainerCheckpoints::require_equal_kept(const std::string& when) const {
  world_.kept.require_equal_values(when, between_.group(), between_.gather("kept values"));
}

std::exception_ptr TrainerCheckpoints::save(const std::string& directory,
                                            const SaveOptions& options, std::int64_t steps,
                                            const std::function<void()>& check) {
  const EndPostponed until_saved;
  between_.begin_on_all("save()", [&] {
    check();
    world_.kept.require_sound();
  });
  require_equal_kept("save()");
  state_.bring();
  state_.gather(between_.gather("save()"));
  const auto error = between_.on_first_rank("save()", [&] { write(directory, options, steps); });
  state_.release();
  return error;
}

/// Rank 0's.
void TrainerCheckpoints::write(const std::string& directory, const SaveOptions& options,
                               std::int64_t steps) {
  CheckpointStore store(host_files(), directory, {.keep = options.keep});
  const auto newest = store.newest();
  state_.write(store, {.step = steps,
                       .facts = facts_,
                       .state = {{kStructure, structure_of(world_.module)},
                                 {kArithmetic, arithmetic_facts()}},
                       .run = run()});
  if (newest > steps && !std::exchange(said_newer_, true)) {
    log_warning(
        fmt::format("the checkpoint of step {} lies beside one of step {}, which was there before: "
                    "load(\"{}\") will take this run's newest; give each run a folder of its own",
                    steps, *newest, directory));
  }
}

bool TrainerCheckpoints::load(const std::string& directory, const LoadOptions& options,
                              const std::function<void()>& check,
                              const std::function<void()>& spread) {
  between_.begin_on_all("load()", [&] {
    check();
    world_.kept.require_sound();
  });
  world_.kept.require_equal_names("load()", between_.group(), between_.gather("load()"));
  std::vector<std::byte> found;
  const auto error = between_.on_first_rank("load()", [&] { found = read(directory, options); });
  if (error) std::rethrow_exception(error);
  found = between_.gather("load()")(found).front();
  if (found.empty()) return false;
  world_.log.reset();
  world_.curves.reset();
  spread();
  state_.restore(found);
  return true;
}

/// Rank 0's: fills all tensors; none where it throws anything but Mismatch. What all workers
/// restore; empty where there is no checkpoint.
std::vector<std::byte> TrainerCheckpoints::read(const std::string& directory,
                                                const LoadOptions& options) const {
  if (is_checkpoint_folder(*host_files(), directory)) {
    throw InvalidArgument(
        fmt::format("{} is one checkpoint: give the folder that it lies in", directory));
  }
  if (options.of_this_run && run().empty()) {
    throw InvalidArgument("load(): of_this_run in a job that has no identity of a run");
  }
  const CheckpointStore store(host_files(), directory);
  const auto checkpoint = open_checkpoint(
      store, facts_, options.fall_back, options.of_this_run ? std::optional(run()) : std::nullopt);
  if (!checkpoint) return {};
  auto found = state_.read(*checkpoint);
  const auto differences = arithmetic_differences(*checkpoint);
  if (!differences.empty()) {
    log_warning(
        fmt::format("trainer: {} was computed with other arithmetic; bits may come out otherwise "
                    "than in a run that never stopped:\n{}",
                    checkpoint->folder().string(), differences));
  }
  log_info(fmt::format("trainer: resumed from {}", checkpoint->folder().string()));
  return found;
}

void TrainerCheckpoints::log(const StepResult& result) noexcept {
  if (between_.group().rank() != 0) return;
  if (options_.log.empty() && options_.tensorboard.empty()) return;
  try {
    if (write_log(result)) log_failed_ = false;
  } catch (...) {
    if (!std::exchange(log_failed_, true)) {
      log_warning(fmt::format("step {} is missing in the {}, perhaps steps after it too: {}",
                              result.step, options_.log.empty() ? "curves" : "step log",
                              exception_text()));
    }
  }
}

/// Rank 0's. The others continue meanwhile: nothing can be written before it publishes its next
/// step. False where nothing was due.
bool TrainerCheckpoints::write_log(const StepResult& result) {
  auto& log = world_.log;
  auto& curves = world_.curves;
  if (!log && !options_.log.empty()) {
    log = std::make_unique<StepLog>(host_files(), options_.log, facts_, result.step - 1);
  }
  if (!curves && !options_.tensorboard.empty()) {
    curves = std::make_unique<StepCurves>(event_file_in(options_.tensorboard),
                                          rates_of(world_.optimizer), result.step - 1);
  }
  const bool has_metrics = options_.metrics_every > 0 && result.step % options_.metrics_every == 0;
  if (has_metrics) {
    const StepFigures figures = {.applied = result.applied,
                                 .dropped_because = result.dropped_because,
                                 .dropped_locally = result.dropped_locally,
                                 .loss = result.loss,
                                 .weight = result.weight,
                                 .gradient_norm = result.gradient_norm,
                                 .rate_factor = result.rate_factor,
                                 .loss_scale = result.loss_scale,
                                 .metrics = result.metrics};
    if (log) log->metrics(result.step, figures);
    if (curves) curves->add(result.step, figures);
  } else if (curves) {
    curves->pass(result.weight);
  }
  if (hashes(result.step)) log->digests(result.step, state_.digests());
  return has_metrics || hashes(result.step);
}

}  // namespace tutti
