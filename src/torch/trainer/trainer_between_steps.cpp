// What a Trainer does between its steps.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "torch/trainer/carried_run.h"
#include "torch/trainer/trainer_edit.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"

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

void TrainerState::save_on_signal(const std::string& directory, const SaveOptions& options) {
  own().between.require_together("save_on_signal()");
  auto& job = own().group.state()->job();
  own().between.begin_on_all("save_on_signal()", [&] {
    if (directory.empty()) throw InvalidArgument("save_on_signal(): the directory's name is empty");
    save_on_signal_.reset();
    save_on_signal_.reset(new SaveOnSignal{directory, options, EndClaim(job)});
  });
  note_end_requests(job);
}

void TrainerState::end_if_asked() {
  if (!save_on_signal_) return;
  auto& job = own().group.state()->job();
  const std::byte asked{end_was_requested()};
  const auto gather = own().between.gather("save_on_signal()");
  const auto all = gather({&asked, 1});
  if (std::ranges::all_of(all, [](const auto& one) { return one.front() == std::byte{0}; })) return;
  const EndPostponed until_saved;
  save(save_on_signal_->directory, save_on_signal_->options);
  if (own().group.rank() == 0) {
    log_info(fmt::format(
        "trainer: a signal has asked for the end: step {} is saved in {}, and all workers end with "
        "status {}; start the run again to resume it",
        steps(), save_on_signal_->directory, kResumeStatus));
  }
  end_to_resume(job);
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
