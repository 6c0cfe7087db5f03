// What a Trainer does between its steps.

#include <fmt/format.h>

#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "torch/trainer/carried_run.h"
#include "torch/trainer/trainer_edit.h"
#include "torch/trainer/trainer_state.h"

namespace tutti {

void TrainerState::edit(const std::function<void()>& change) {
  own().between.require_together("edit()");
  const auto me = fmt::format("edit() of Trainer \"{}\"", own().options.name);
  const Stepping stepping(own().group.state()->job(), me);
  std::exception_ptr error;
  own().exchange->protocol().run_collectives([&] {
    error = edit_by_hand(own().trained(), own().between, change,
                         [&] { BetweenSteps::require_one_thread(me, stepping); });
    expect_values();
  });
  if (error) std::rethrow_exception(error);
}

void TrainerState::keep(const std::string& name, KeptValues::Variable variable) {
  own().between.require_together(fmt::format("keep(\"{}\")", name));
  own().between.require("keep()");
  world_.kept.add(name, variable);
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  own().between.require_together("save()");
  std::exception_ptr error;
  own().exchange->protocol().run_collectives([&] {
    error = own().checkpoints->save(directory, options, own().steps,
                                    [&] { own().trained().require_untouched(); });
  });
  if (error) std::rethrow_exception(error);
}

std::optional<std::int64_t> TrainerState::load(const std::string& directory,
                                               const LoadOptions& options) {
  own().between.require_together("load()");
  const auto me = fmt::format("load() of Trainer \"{}\"", own().options.name);
  const Stepping stepping(own().group.state()->job(), me);
  std::optional<std::int64_t> step;
  own().exchange->protocol().run_collectives([&] {
    if (own().replicas) own().replicas->land();
    const auto check = [&] {
      BetweenSteps::require_one_thread(me, stepping);
      own().model.require_all_in_place();
    };
    // Rank 0 has filled the memory of its host.
    const auto spread = [&] {
      copy_to_hosts(own().group, own().shared->memory().data(), own().shared->bytes());
      own().spread_from_first_rank();
    };
    if (!own().checkpoints->load(directory, options, check, spread)) return;
    resumes_ = true;
    continue_from_state();
    step = own().steps;
  });
  return step;
}

void TrainerState::continue_from_state() {
  own().epochs.moved(own().steps);
  own().step_parts.resume();
  expect_values();
}

void TrainerState::rebuild() {
  own().between.require_together("rebuild()");
  own().between.require("rebuild()");
  const auto me = fmt::format("rebuild() of Trainer \"{}\"", own().options.name);
  const Stepping stepping(own().group.state()->job(), me);
  std::optional<CarriedRun> carried;
  own().exchange->protocol().run_collectives([&] {
    own().between.begin_on_all("rebuild()", [&] {
      BetweenSteps::require_one_thread(me, stepping);
      own().model.require_unchanged_list();
      own().trained().require_untouched();
    });
    carried.emplace(own().between, own().state, own().steps);
  });
  run_.reset();
  run_.emplace(world_);
  own().exchange->protocol().run_collectives([&] {
    carried->restore(own().between, own().state, [&] { own().spread_from_first_rank(); });
    continue_from_state();
  });
}

/// What is to be hashed comes from other hosts, where only they have it.
void TrainerState::bring() {
  auto& state = own().state;
  if (state.is_on_hosts()) own().exchange->protocol().run_collectives([&] { state.bring(); });
}

std::string TrainerState::state_sha256() {
  bring();
  return own().checkpoints->sha256(own().model.parameters().size());
}

}  // namespace tutti
