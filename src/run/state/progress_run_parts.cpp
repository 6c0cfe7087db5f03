#include "run/state/progress_run_parts.h"

#include <vector>

namespace tutti {
namespace {

std::int64_t number(const nlohmann::json& state, const char* name) {
  return state.at(name).get<std::int64_t>();
}

DataPosition position_of(const nlohmann::json& state) {
  return {number(state, "epoch"), number(state, "samples_taken"), number(state, "dataset_size")};
}

LossScaleState loss_scale_of(const nlohmann::json& state) {
  return {state.at("loss_scale").get<double>(), number(state, "good_steps")};
}

Turns turns_of(const nlohmann::json& state) {
  return Turns(state.value("turns", std::vector<std::uint64_t>()));
}

}  // namespace

void StepsRunPart::write(nlohmann::json& state) const {
  state["steps"] = steps_;
  state["dropped_in_a_row"] = dropped_in_a_row_;
}

void StepsRunPart::check(const nlohmann::json& state) const {
  number(state, "steps");
  number(state, "dropped_in_a_row");
}

void StepsRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  steps_ = number(state, "steps");
  dropped_in_a_row_ = number(state, "dropped_in_a_row");
}

void DataOrderRunPart::write(nlohmann::json& state) const {
  const auto& position = order_.position();
  state["epoch"] = position.epoch;
  state["samples_taken"] = position.taken;
  state["dataset_size"] = position.dataset_size;
}

void DataOrderRunPart::check(const nlohmann::json& state) const {
  auto tried = order_;
  tried.restore(position_of(state));
}

void DataOrderRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  order_.restore(position_of(state));
}

void LossScaleRunPart::write(nlohmann::json& state) const {
  state["loss_scale"] = scale_.factor;
  state["good_steps"] = scale_.good_steps;
}

void LossScaleRunPart::check(const nlohmann::json& state) const { loss_scale_of(state); }

void LossScaleRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  scale_ = loss_scale_of(state);
}

void TurnsRunPart::write(nlohmann::json& state) const {
  if (!turns_.latest().empty()) state["turns"] = turns_.latest();
}

void TurnsRunPart::check(const nlohmann::json& state) const { turns_of(state); }

void TurnsRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  turns_ = turns_of(state);
}

}  // namespace tutti
