// A Trainer between steps: edits and checkpoints.

#include <fmt/format.h>

#include "torch/trainer/trainer_edit.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"

namespace tutti {

void TrainerState::edit(const std::function<void()>& change) {
  std::exception_ptr error;
  own_.exchange->run_collectives([&] {
    error = edit_by_hand(own_.trained(), own_.between, change);
    expect_values();
  });
  if (error) std::rethrow_exception(error);
}

void TrainerState::keep(const std::string& name, KeptValues::Variable variable) {
  own_.between.require("keep()");
  if (own_.exchange->is_open()) {
    throw InvalidArgument(fmt::format("keep(\"{}\") inside a step", name));
  }
  own_.checkpoints->keep(name, variable);
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  std::exception_ptr error;
  own_.exchange->run_collectives([&] {
    error = own_.checkpoints->save(directory, options, own_.steps,
                                   [&] { own_.trained().require_untouched(); });
  });
  if (error) std::rethrow_exception(error);
}

std::optional<std::int64_t> TrainerState::load(const std::string& directory,
                                               const LoadOptions& options) {
  std::optional<std::int64_t> step;
  own_.exchange->run_collectives([&] {
    if (!own_.checkpoints->load(directory, options, [&] { own_.model.require_all_in_place(); }))
      return;
    if (own_.audit) own_.audit->start_anew();
    epochs_.moved(own_.steps);
    resumes_ = true;
    own_.buffers->send_all_from_first_rank();
    own_.parameters->written();
    expect_values();
    own_.seed_between_steps();
    step = own_.steps;
  });
  return step;
}

}  // namespace tutti
