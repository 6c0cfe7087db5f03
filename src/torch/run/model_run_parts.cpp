#include "torch/run/model_run_parts.h"

#include <fmt/format.h>

#include <utility>

#include "tutti/error.h"

namespace tutti {
namespace {

/// Elements as in the plan; complex ones where the format has them, else their real numbers.
TensorView view(const PlanEntry& entry, std::string name, DType type, std::byte* at) {
  TensorView view{.name = std::move(name),
                  .type = stored_type(type),
                  .shape = entry.spec.shape,
                  .strides = entry.spec.strides,
                  .data = at};
  if (!entry.spec.is_complex || type != DType::float32) return view;
  view.type = StoredType::C64;
  view.shape.pop_back();
  view.strides.pop_back();
  for (auto& stride : view.strides) stride /= 2;
  return view;
}

std::vector<std::int64_t> updates_of(const nlohmann::json& state) {
  return state.at("updates").get<std::vector<std::int64_t>>();
}

}  // namespace

// ---- parameters ----

ParametersRunPart::ParametersRunPart(const Plan& plan, const SharedModel& model,
                                     PartitionedUpdate& update,
                                     std::vector<std::vector<std::string>> states)
    : RunPart("updates of parameters"),
      plan_(plan),
      model_(model),
      update_(update),
      states_(std::move(states)) {}

void ParametersRunPart::list(StateTensors& tensors) const {
  auto& values = tensors[StateFile::parameters];
  auto& masters = tensors[StateFile::masters];
  auto& states = tensors[StateFile::optimizer];
  for (std::size_t p = 0; p < states_.size(); ++p) {
    const auto& entry = plan_.parameters()[p];
    const auto& name = entry.spec.name;
    values.push_back(view(entry, name, entry.spec.dtype, model_.value(p)));
    if (model_.master(p) != model_.value(p)) {
      masters.push_back(view(entry, name, entry.node_type, model_.master(p)));
    }
    for (std::size_t k = 0; k < states_[p].size(); ++k) {
      states.push_back(view(entry, fmt::format("{}/{}", name, states_[p][k]), entry.node_type,
                            model_.state(p, static_cast<int>(k))));
    }
  }
}

void ParametersRunPart::write(nlohmann::json& state) const { state["updates"] = update_.updates(); }

void ParametersRunPart::check(const nlohmann::json& state) const {
  const auto updates = updates_of(state).size();
  if (updates == states_.size()) return;
  throw InvalidArgument(
      fmt::format("the checkpoint's manifest counts updates of {} parameters, here there are {}",
                  updates, states_.size()));
}

void ParametersRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  update_.updates() = updates_of(state);
}

void ParametersRunPart::hash_parameter(std::size_t parameter, Sha256& hash) const {
  const auto& entry = plan_.parameters()[parameter];
  const auto& name = entry.spec.name;
  const auto bytes = plan_.bytes_of(parameter);
  hash.update(name.data(), name.size());
  hash.update(model_.value(parameter),
              static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype));
  hash.update(model_.master(parameter), bytes);
  for (int k = 0; k < model_.states(parameter); ++k) hash.update(model_.state(parameter, k), bytes);
  hash.update(&update_.updates()[parameter], sizeof(std::int64_t));
}

// ---- residuals ----

void ResidualsRunPart::list(StateTensors& tensors) const {
  const auto& store = coded_.board();
  if (!store.has_residuals()) return;
  auto& kept = tensors[StateFile::residuals];
  const auto parameters = plan_.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].is_partitioned()) continue;
    for (std::size_t l = 0; l < store.logical_workers(); ++l) {
      for (int k = 0; k < store.kept(); ++k) {
        const auto which = static_cast<Kept>(k);
        kept.push_back(view(parameters[p],
                            fmt::format("{}/{}.{}", parameters[p].spec.name,
                                        which == Kept::residual ? "residual" : "velocity", l),
                            DType::float32, reinterpret_cast<std::byte*>(store.kept(which, l, p))));
      }
    }
  }
}

void ResidualsRunPart::hash_parameter(std::size_t parameter, Sha256& hash) const {
  const auto& store = coded_.board();
  const auto& entry = plan_.parameters()[parameter];
  if (!entry.is_partitioned()) return;
  for (std::size_t l = 0; l < store.logical_workers(); ++l) {
    for (int k = 0; k < store.kept(); ++k) {
      hash.update(store.kept(static_cast<Kept>(k), l, parameter),
                  static_cast<std::size_t>(entry.spec.count) * sizeof(float));
    }
  }
}

// ---- averages ----

void AveragesRunPart::list(StateTensors& tensors) const {
  if (averages_ == nullptr) return;
  auto& averages = tensors[StateFile::averages];
  const auto parameters = plan_.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    averages.push_back(
        view(parameters[p], parameters[p].spec.name, parameters[p].node_type, model_.average(p)));
  }
}

void AveragesRunPart::write(nlohmann::json& state) const {
  state["averaged_steps"] = averages_ != nullptr ? averages_->steps() : 0;
}

void AveragesRunPart::check(const nlohmann::json& state) const {
  state.at("averaged_steps").get<std::int64_t>();
}

void AveragesRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  if (averages_ != nullptr) averages_->restore(state.at("averaged_steps").get<std::int64_t>());
}

}  // namespace tutti
