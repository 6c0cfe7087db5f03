#include "torch/model/wrapped_model.h"
#include "torch/device/device_arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>

#include "base/log_line.h"
#include "kernels/hash.h"
#include "torch/model/arithmetic.h"
#include "torch/model/layout.h"
#include "torch/model/real_numbers.h"
#include "torch/model/resolved.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

TensorSpec parameter_spec(const std::string& name, const torch::Tensor& tensor) {
  const auto reals = as_reals(tensor.detach());
  return {name,          reals.sizes().vec(), reals.strides().vec(),
          reals.numel(), dtype_of(tensor),    tensor.is_complex()};
}

/// Buffers are moved as bytes, whatever their type.
TensorSpec buffer_spec(const std::string& name, const torch::Tensor& tensor) {
  return {fmt::format("{} ({})", name, c10::toString(tensor.scalar_type())), tensor.sizes().vec(),
          tensor.strides().vec(), static_cast<std::int64_t>(tensor.nbytes()), DType::uint8};
}

}  // namespace

WrappedModel::WrappedModel(torch::nn::Module& module, const ParameterRoles& roles,
                           std::string owner)
    : owner_(std::move(owner)),
      model_(roles.model),
      module_(&module),
      excluded_(roles.excluded),
      split_(roles.split),
      parameters_(list(module)) {
  for (const auto& item : module.named_buffers()) {
    if (excluded_ && excluded_(item.key())) {
      excluded_any_ = true;
      continue;
    }
    if (!item.value().defined()) continue;
    if (split_.contains(item.value().unsafeGetTensorImpl())) continue;
    buffers_.emplace_back(item.key(), item.value());
  }
  if (excluded_) {
    for (const auto& item : module.named_parameters()) {
      excluded_any_ = excluded_any_ || excluded_(item.key());
    }
  }
  check(false);
  find_names();
  take_roles(roles);
}

WrappedModel::WrappedModel(NamedTensors parameters, const ParameterRoles& roles)
    : model_(roles.model), excluded_(roles.excluded) {
  for (auto& item : parameters) {
    if (excluded_ && excluded_(item.first)) {
      excluded_any_ = true;
    } else {
      parameters_.push_back(std::move(item));
    }
  }
  check(true);
  find_names();
  take_roles(roles);
}

std::string WrappedModel::what(const char* kind, const std::string& name) const {
  const auto of = model_.empty() ? std::string() : fmt::format(" of \"{}\"", model_);
  return fmt::format("{} \"{}\"{}", kind, name, of);
}

std::string WrappedModel::label(std::size_t parameter) const {
  return what("parameter", name(parameter));
}

void WrappedModel::find_names() {
  std::unordered_map<const void*, std::size_t> index;
  for (const auto& [name, tensor] : parameters_) {
    index.emplace(tensor.unsafeGetTensorImpl(), names_.size());
    names_.push_back({name});
  }
  if (module_ == nullptr) return;
  for (const auto& item : module_->named_parameters()) {
    if (!item.value().defined()) continue;
    const auto found = index.find(item.value().unsafeGetTensorImpl());
    if (found == index.end()) continue;
    auto& names = names_[found->second];
    if (item.key() != names.front()) names.push_back(item.key());
  }
}

void WrappedModel::take_roles(const ParameterRoles& roles) {
  roles_ = find_roles(roles, module_, parameters_, names_, buffers_);
  if (!roles.excluded || excluded_any_) return;
  roles_.unmatched.emplace(roles_.unmatched.begin(), "per_replica");
}

NamedTensors WrappedModel::list(const torch::nn::Module& module) const {
  NamedTensors found;
  auto seen = split_;
  const auto all = module.named_parameters();
  if (excluded_) {
    for (const auto& item : all) {
      if (item.value().defined() && excluded_(item.key())) {
        seen.insert(item.value().unsafeGetTensorImpl());
      }
    }
  }
  for (const auto& item : all) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

void WrappedModel::check(bool listed) {
  if (parameters_.empty() && split_.empty()) {
    throw InvalidArgument(
        "the model has no parameter to train, but for layers that update themselves");
  }
  std::unordered_set<const void*> seen;
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.defined())
      throw InvalidArgument(fmt::format("parameter \"{}\" is undefined", name));
    if (listed && !seen.insert(tensor.unsafeGetTensorImpl()).second) {
      throw InvalidArgument(fmt::format("parameter \"{}\" is listed twice", name));
    }
    try {
      require_dense(tensor);
      if (tensor.is_quantized() || !is_floating(dtype_of(tensor))) {
        throw Unsupported(fmt::format("element type {}", c10::toString(tensor.scalar_type())));
      }
    } catch (const Error& error) {
      throw Unsupported(fmt::format("parameter \"{}\": {}", name, error.what()));
    }
    if (!tensor.is_leaf()) {
      throw InvalidArgument(fmt::format("parameter \"{}\" is not a leaf: it was computed", name));
    }
    addresses_.push_back(tensor.data_ptr());
  }
  for (const auto& [name, tensor] : buffers_) {
    if (tensor.layout() != torch::kStrided || !tensor.is_non_overlapping_and_dense()) {
      throw Unsupported(fmt::format("buffer \"{}\" is not a dense tensor", name));
    }
    if (!is_resolved(tensor)) {
      throw Unsupported(
          fmt::format("buffer \"{}\" has torch's negative or conjugate bit, and its memory is not "
                      "what its elements are: register its clone()",
                      name));
    }
    buffer_places_.emplace_back(tensor.data_ptr(), tensor.nbytes());
  }
  if (!parameters_.empty()) device_ = parameters_.front().second.device();
  require_one_device();
}

void WrappedModel::require_one_device() const {
  const auto require = [this](const char* kind, const auto& item) {
    if (item.second.device() == device_) return;
    throw Unsupported(fmt::format(
        "{} \"{}\" is on {}, but parameter \"{}\" on {}: all of a model is on one device", kind,
        item.first, item.second.device().str(), name(0), device_.str()));
  };
  for (const auto& item : parameters_) require("parameter", item);
  for (const auto& item : buffers_) require("buffer", item);
}

Plan WrappedModel::plan(const std::vector<std::pair<std::string, std::string>>& settings,
                        bool is_summed_elsewhere) const {
  std::vector<TensorSpec> parameters;
  std::vector<TensorSpec> buffers;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    parameters.push_back(parameter_spec(name(p), tensor(p)));
    parameters.back().row_sparse = row_sparse(p);
    parameters.back().is_per_replica = is_per_replica(p);
    parameters.back().owner = owner(p);
    parameters.back().is_summed_elsewhere = is_summed_elsewhere;
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    buffers.push_back(buffer_spec(buffers_[b].first, buffers_[b].second));
    buffers.back().is_per_replica = is_per_replica_buffer(b);
  }
  auto all = settings;
  for (const auto& [name, value] : compared_facts(read_arithmetic())) {
    const bool is_there = std::ranges::any_of(
        settings, [&name = name](const auto& setting) { return setting.first == name; });
    if (!is_there) all.emplace_back(name, value);
  }
  for (auto& fact : device_facts(device_)) all.push_back(std::move(fact));
  auto remedies = remedies_of_facts();
  remedies.merge(remedies_of_device_facts());
  return {std::move(parameters), std::move(buffers), all, remedies};
}

ModelMemory WrappedModel::memory() const {
  ModelMemory memory;
  for (const auto& item : parameters_) memory.parameters.push_back(item.second.data_ptr());
  for (const auto& item : buffers_) memory.buffers.push_back(item.second.data_ptr());
  return memory;
}

void WrappedModel::require_apart() const {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    const std::string* name;
    bool is_parameter;
  };
  std::vector<Range> ranges;
  const auto add = [&](const auto& item, bool is_parameter) {
    const auto* const at = static_cast<const std::byte*>(item.second.data_ptr());
    const auto bytes = item.second.nbytes();
    if (bytes > 0) ranges.push_back({at, at + bytes, &item.first, is_parameter});
  };
  for (const auto& item : parameters_) add(item, true);
  for (const auto& item : buffers_) add(item, false);
  std::ranges::stable_sort(ranges, {}, &Range::begin);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::size_t k = i + 1; k < ranges.size() && ranges[k].begin < ranges[i].end; ++k) {
      if (!ranges[i].is_parameter && !ranges[k].is_parameter) continue;
      const bool ordered = ranges[k].is_parameter;
      const auto& one = ordered ? ranges[k] : ranges[i];
      const auto& other = ordered ? ranges[i] : ranges[k];
      throw InvalidArgument(
          fmt::format("parameter \"{0}\" shares memory with \"{1}\", which {2} could not keep up: "
                      "register one tensor under both names, or give each memory of its own",
                      *one.name, *other.name, owner_));
    }
  }
}

std::vector<std::string> WrappedModel::with_aliases() const {
  std::unordered_map<const void*, std::size_t> registered;  // tensors, by their storage
  std::unordered_set<const void*> seen;
  const auto count = [&](const auto& item) {
    if (seen.insert(item.second.unsafeGetTensorImpl()).second) {
      ++registered[item.second.storage().unsafeGetStorageImpl()];
    }
  };
  for (const auto& item : parameters_) count(item);
  for (const auto& item : buffers_) count(item);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters_) {
    const auto& storage = tensor.storage();
    if (storage.use_count() > registered.at(storage.unsafeGetStorageImpl())) names.push_back(name);
  }
  return names;
}

void WrappedModel::require_in_place(std::size_t parameter) const {
  const auto& [name, tensor] = parameters_[parameter];
  if (tensor.data_ptr() == addresses_[parameter]) return;
  throw InvalidArgument(
      fmt::format("{1} was moved after {0} was made (to(), load() or set_data()); convert and "
                  "load the model first, or make a new {0}",
                  owner_, what("parameter", name)));
}

void WrappedModel::require_all_parameters_in_place() const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) require_in_place(p);
}

void WrappedModel::require_all_in_place() const {
  require_all_parameters_in_place();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const auto& [name, tensor] = buffers_[b];
    if (std::pair(tensor.data_ptr(), tensor.nbytes()) == buffer_places_[b]) continue;
    throw InvalidArgument(fmt::format(
        "{1} was moved after {0} was made (to(), load() or set_data()); convert and load the model "
        "first, or make a new {0}",
        owner_, what("buffer", name)));
  }
}

void WrappedModel::require_unchanged_list() const {
  if (module_ == nullptr) return;
  const auto now = list(*module_);
  std::unordered_set<const void*> known;
  for (const auto& item : parameters_) known.insert(item.second.unsafeGetTensorImpl());
  for (const auto& [name, tensor] : now) {
    if (known.contains(tensor.unsafeGetTensorImpl())) continue;
    throw InvalidArgument(
        fmt::format("{1} was added or replaced after {0} was made; make a new one", owner_,
                    what("parameter", name)));
  }
  if (now.size() != parameters_.size()) {
    throw InvalidArgument(
        fmt::format("a parameter was removed after {} was made; make a new one", owner_));
  }
}

void warn_of_unmatched(const WrappedModel& model, const std::string& name, const Group& group) {
  if (group.rank() != 0) return;
  for (const auto& option : model.unmatched()) {
    log_warning(fmt::format("\"{}\": option {} holds for none of its parameters", name, option));
  }
}

void send_from_first_rank(const Group& group, const std::pair<std::string, torch::Tensor>& item,
                          std::optional<std::chrono::milliseconds> deadline) {
  const auto& [name, tensor] = item;
  const auto here = tensor.detach().cpu();
  const auto hash = [&here] { return digest(here.data_ptr(), here.nbytes()); };
  const auto before = hash();
  group.broadcast({here.data_ptr(), static_cast<std::int64_t>(here.nbytes()), DType::uint8}, 0,
                  {.label = name, .deadline = deadline});
  if (hash() == before) return;
  if (tensor.is_cpu()) return tensor.unsafeGetTensorImpl()->bump_version();
  const torch::NoGradGuard no_grad;
  tensor.copy_(here);
}

void send_from_first_rank(const Group& group, const NamedTensors& tensors,
                          std::optional<std::chrono::milliseconds> deadline) {
  for (const auto& item : tensors) send_from_first_rank(group, item, deadline);
}

}  // namespace tutti
