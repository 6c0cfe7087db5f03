#include "torch/shards/shared_parameters.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error_kind.h"
#include "base/log_line.h"
#include "comm/host_copies.h"
#include "torch/model/tensor_at.h"
#include "tutti/error.h"

namespace tutti {

SharedParameters::SharedParameters(const Group& group, const WrappedModel& model,
                                   const SharedModel& shared,
                                   std::optional<std::chrono::milliseconds> deadline)
    : parameters_(model.parameters()) {
  if (!model.device().is_cpu()) {
    device_ = std::make_unique<DeviceParameters>(group, model, shared, deadline);
  }
  places_.resize(parameters_.size());
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto& tensor = parameters_[p].second;
    places_[p] = tensor.const_data_ptr();
    if (group.rank() != 0 || device_ || tensor.nbytes() == 0) continue;
    std::memcpy(shared.value(p), tensor.data_ptr(), tensor.nbytes());
  }
  if (group.rank() == 0) take_written();
  group.barrier({.label = "parameters"});
  copy_to_hosts(group, shared.memory().data(), shared.bytes(), {.label = "parameters"});
  was_written_.resize(parameters_.size());
  before_.resize(parameters_.size());
  spoiled_.resize(parameters_.size());
  give_all();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!device_) lay(p, shared);
    versions_.push_back(static_cast<std::int64_t>(parameters_[p].second._version()));
  }
}

SharedParameters::~SharedParameters() {
  if (device_) return;
  std::size_t p = 0;
  try {
    for (; p < parameters_.size(); ++p) take_back(p);
  } catch (...) {
    log_error(
        fmt::format("parameter \"{}\" and those after it still lie in memory that all workers "
                    "share, although their Trainer has ended: {}; train no further",
                    parameters_[p].first, exception_text()));
  }
}

void SharedParameters::take_back(std::size_t parameter) {
  auto& tensor = parameters_[parameter].second;
  if (tensor.data_ptr() != places_[parameter]) return;  // the program has moved it
  const torch::NoGradGuard no_grad;
  auto own =
      torch::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
  if (own.nbytes() > 0) std::memcpy(own.data_ptr(), tensor.data_ptr(), own.nbytes());
  tensor.set_data(own);
}

void SharedParameters::lay(std::size_t parameter, const SharedModel& copy) {
  auto& tensor = parameters_[parameter].second;
  tensor.set_data(tensor_at(copy.value(parameter), tensor, tensor.scalar_type(), copy.memory()));
  places_[parameter] = tensor.data_ptr();
}

void SharedParameters::show(const SharedModel& copy, std::span<const std::uint32_t> parameters) {
  for (const auto p : parameters) {
    was_written_[p] = was_written(p);
    lay(p, copy);
    bump(p);
  }
}

bool SharedParameters::was_written(std::size_t parameter) const {
  return was_written_[parameter] ||
         static_cast<std::int64_t>(parameters_[parameter].second._version()) !=
             versions_[parameter];
}

void SharedParameters::require_not_spoiled() const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (spoiled_[p] == 0) continue;
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" has values that a closure of a shard, or of evaluate(), has left, which "
        "depend on who computed what: write its values anew inside trainer.edit(), or load() a "
        "checkpoint",
        parameters_[p].first));
  }
}

void SharedParameters::require_untouched() const {
  require_not_spoiled();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto& name = parameters_[p].first;
    if (was_written(p)) {
      throw InvalidArgument(fmt::format(
          "parameter \"{}\" was written between steps, where all workers read it; change values "
          "inside trainer.edit()",
          name));
    }
  }
}

SharedParameters::Seen SharedParameters::seen(std::size_t parameter) const {
  const auto& tensor = parameters_[parameter].second;
  return {tensor.const_data_ptr(), static_cast<std::uint32_t>(tensor._version())};
}

std::vector<std::uint32_t> SharedParameters::versions() const {
  std::vector<std::uint32_t> versions;
  for (std::size_t p = 0; p < parameters_.size(); ++p) versions.push_back(seen(p).version);
  return versions;
}

/// The first parameter that the closure has changed. One that has only moved is not spoiled: its
/// memory still holds what it did.
std::optional<std::size_t> SharedParameters::spoil_changed() {
  std::optional<std::size_t> first;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto now = seen(p);
    if (now == before_[p]) continue;
    if (now.version != before_[p].version) spoiled_[p] = 1;
    if (!first) first = p;
  }
  return first;
}

void SharedParameters::run_closure(const std::function<void()>& closure,
                                   const std::function<std::string()>& who) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) before_[p] = seen(p);
  try {
    closure();
  } catch (...) {
    spoil_changed();
    throw;
  }
  const auto changed = spoil_changed();
  if (!changed) return;
  throw InvalidArgument(fmt::format(
      "{} {} parameter \"{}\", which all workers of a host read in one place, and so do "
      "shards and batches that come later: change values between steps, inside "
      "trainer.edit()",
      who(), spoiled_[*changed] != 0 ? "wrote to" : "moved", parameters_[*changed].first));
}

void SharedParameters::written() {
  give_all();
  note_written();
}

/// The parameters that still lie where they were put: the program may have moved others.
std::vector<std::uint32_t> SharedParameters::in_place() const {
  std::vector<std::uint32_t> parameters;
  for (std::uint32_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].second.const_data_ptr() == places_[p]) parameters.push_back(p);
  }
  return parameters;
}

void SharedParameters::give_all() {
  if (device_) device_->give(in_place());
}

void SharedParameters::take_written() {
  if (device_) device_->take(in_place());
}

void SharedParameters::give_early(std::span<const std::uint32_t> parameters) {
  for (const auto p : parameters) given_[p] = 1;
  device_->give(parameters);
}

/// On a device the values of all others are there.
void SharedParameters::commit(StepFacts& step) {
  if (device_) {
    std::vector<std::uint32_t> touched;
    for (std::uint32_t p = 0; p < parameters_.size(); ++p) {
      if (step.touched[p] != 0 && given_[p] == 0) touched.push_back(p);
    }
    device_->give(touched);
    device_->add_costs(step.report);
  }
  note_written();
}

void SharedParameters::note_written() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    bump(p);
    was_written_[p] = false;
    spoiled_[p] = 0;
  }
}

void SharedParameters::bump(std::size_t parameter) {
  auto& tensor = parameters_[parameter].second;
  tensor.unsafeGetTensorImpl()->bump_version();
  versions_[parameter] = static_cast<std::int64_t>(tensor._version());
}

}  // namespace tutti
