#include "torch/model/host_copies.h"

#include <fmt/format.h>

#include <exception>
#include <numeric>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "memory/memory_need.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::size_t bytes_of(const NamedTensors& tensors) {
  std::size_t bytes = 0;
  for (const auto& item : tensors) bytes += item.second.nbytes();
  return bytes;
}

}  // namespace

void add_costs(StepReport& step, const DeviceCosts& costs) {
  step.device_bytes += costs.bytes;
  step.device_wait_seconds += costs.wait_seconds;
}

HostCopies::HostCopies(const WrappedModel& model, const Group& group,
                       std::optional<std::chrono::milliseconds> deadline, const std::string& name,
                       Of of)
    : model_(model),
      device_(group, model.device(), deadline),
      sums_(group, model.device(), deadline),
      name_(name),
      of_(of) {
  auto& job = group.state()->job();
  const auto refusal = refuse_memory(
      job.system(),
      {bytes(), static_cast<int>(job.hosts().neighbours(job.identity().rank).size()),
       fmt::format("host copies of \"{}\", which is on {}", name, device_.device().str()), true});
  if (!refusal.empty()) throw OutOfMemory(refusal);
  for (const auto& item : model.parameters()) {
    if (of == Of::all) parameters_.push_back(device_.host_like(item.second));
  }
  for (const auto& item : model.buffers()) buffers_.push_back(device_.host_like(item.second));
}

HostCopies::~HostCopies() {
  try {
    settle();
  } catch (const std::exception& error) {
    log_warning(fmt::format("\"{}\" has ended, but: {}", name_, error.what()));
  }
}

std::size_t HostCopies::parameter_bytes() const { return bytes_of(model_.parameters()); }

std::size_t HostCopies::bytes() const {
  return (of_ == Of::all ? parameter_bytes() : 0) + bytes_of(model_.buffers());
}

void HostCopies::report(StepReport& step) {
  add_costs(step, device_.costs());
  add_costs(step, sums_.costs());
}

ModelMemory HostCopies::memory() const {
  ModelMemory memory;
  for (const auto& copy : parameters_) memory.parameters.push_back(copy.data_ptr());
  for (const auto& copy : buffers_) memory.buffers.push_back(copy.data_ptr());
  return memory;
}

NamedTensors HostCopies::buffers() const {
  NamedTensors named;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    named.emplace_back(model_.buffers()[b].first, buffers_[b]);
  }
  return named;
}

void HostCopies::settle() {
  wait_for("copies");
  sums_.wait(sums_.mark(), [&] { return fmt::format("sums of \"{}\"", name_); });
}

void HostCopies::wait_for(const char* what) {
  device_.wait(device_.mark(), [&] { return fmt::format("{} of \"{}\"", what, name_); });
}

void HostCopies::fetch_parameters() {
  std::vector<std::uint32_t> all(parameters_.size());
  std::iota(all.begin(), all.end(), 0U);
  fetch_parameters(all);
}

void HostCopies::fetch_parameters(std::span<const std::uint32_t> some) {
  if (some.empty()) return;
  device_.comes_after(sums_.mark());
  for (const auto p : some) device_.copy(model_.tensor(p), parameters_[p]);
  wait_for("the parameters");
}

void HostCopies::fetch_buffers() {
  if (buffers_.empty()) return;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    device_.copy(model_.buffers()[b].second, buffers_[b]);
  }
  wait_for("the buffers");
}

std::vector<torch::Tensor> HostCopies::copies_of_buffers() {
  std::vector<torch::Tensor> copies;
  for (const auto& item : model_.buffers()) {
    copies.push_back(device_.host_like(item.second));
    device_.copy(item.second, copies.back());
  }
  return copies;
}

void HostCopies::give_parameters(std::span<const std::uint8_t> changed) {
  give(parameters_, model_.parameters(), changed);
}

void HostCopies::give_buffers(std::span<const std::uint8_t> changed) {
  give(buffers_, model_.buffers(), changed);
}

void HostCopies::give(const std::vector<torch::Tensor>& copies, const NamedTensors& to,
                      std::span<const std::uint8_t> changed) {
  bool any = false;
  for (std::size_t k = 0; k < changed.size(); ++k) {
    if (changed[k] == 0) continue;
    device_.copy(copies[k], to[k].second);
    any = true;
  }
  if (any) device_.current_stream_waits(device_.mark());
}

}  // namespace tutti
