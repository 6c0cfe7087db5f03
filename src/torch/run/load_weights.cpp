#include "tutti/load_weights.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "run/files/manifest.h"
#include "run/files/safetensors_reader.h"
#include "run/files/strict_json.h"
#include "torch/model/overlap.h"
#include "torch/model/same_bytes.h"
#include "torch/model/type_text.h"
#include "torch/run/stored_tensors.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// A tensor of a file.
struct Given {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;
};

/// A tensor of the model, with all of its names.
struct Target {
  torch::Tensor tensor;
  std::vector<std::string> names;
  std::vector<Given> given;
};

/// The name of each tensor that an index lists, and the file that it lies in: one beside the index,
/// since what was downloaded does not open others.
std::map<std::string, fs::path> files_of_index(const fs::path& index) {
  const auto files = host_files();
  const auto file = files->open(index);
  std::string text(files->size(file), '\0');
  read_all(*files, file, 0, std::as_writable_bytes(std::span(text)));
  const auto refusal = fmt::format("{} is no index of safetensors files:", index.string());
  std::map<std::string, fs::path> found;
  each_value(
      text, refusal + " it", {},
      [&](std::span<const std::string> path, const nlohmann::json& value) {
        if (path.size() != 2 || path[0] != "weight_map") return;
        if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>())) {
          throw Corrupt(fmt::format("{} the file of \"{}\" is none beside it", refusal, path[1]));
        }
        found.emplace(path[1], index.parent_path() / value.get_ref<const std::string&>());
      });
  if (found.empty()) {
    throw Corrupt(fmt::format(R"({} it has no "weight_map" of names and files)", refusal));
  }
  return found;
}

/// The tensors of a file, or of all that an index lists.
class GivenTensors {
 public:
  explicit GivenTensors(const fs::path& file) {
    if (file.extension() != ".json") {
      const auto& one = open(file);
      for (const auto& entry : one.tensors()) given_.push_back({&one, &entry});
      return;
    }
    for (const auto& [name, path] : files_of_index(file)) {
      const auto& one = open(path);
      const auto* const entry = one.find(name);
      if (entry == nullptr) {
        throw Corrupt(fmt::format("{} has no tensor \"{}\", which {} finds there", path.string(),
                                  name, file.string()));
      }
      given_.push_back({&one, entry});
    }
  }
  auto begin() const { return given_.begin(); }
  auto end() const { return given_.end(); }

 private:
  const SafetensorsFile& open(const fs::path& path) {
    auto& file = files_[path];
    if (!file) file = std::make_unique<SafetensorsFile>(host_files(), path);
    return *file;
  }
  std::map<fs::path, std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Given> given_;
};

/// Equal for tensors that are the same elements in memory.
using Place = std::tuple<const void*, std::vector<std::int64_t>, std::vector<std::int64_t>,
                         torch::ScalarType>;
Place place_of(const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided || tensor.numel() == 0) {
    return {tensor.unsafeGetTensorImpl(), {}, {}, tensor.scalar_type()};
  }
  return {tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.scalar_type()};
}

std::vector<Target> targets_of(const torch::nn::Module& module) {
  std::vector<Target> targets;
  std::map<Place, std::size_t> by_place;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [found, is_new] = by_place.try_emplace(place_of(tensor), targets.size());
    if (is_new) targets.push_back({tensor, {}, {}});
    targets[found->second].names.push_back(name);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return targets;
}

/// Why values cannot be written into the model's tensor; empty where they can.
std::string refusal_of(const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided) return "is sparse";
  if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) return "is an inference tensor";
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return "has several elements in one place (expand())";
  }
  return {};
}

bool converts(torch::ScalarType from, torch::ScalarType to) {
  return from == to || (c10::isFloatingType(from) && c10::isFloatingType(to)) ||
         (c10::isComplexType(from) && c10::isComplexType(to));
}

/// Why the tensor of the file cannot be the model's; empty where it can.
std::string misfit_of(const Given& given, const Target& target) {
  const auto& entry = *given.entry;
  const bool fits = torch::IntArrayRef(entry.shape) == target.tensor.sizes() &&
                    converts(scalar_type_of(entry.type), target.tensor.scalar_type());
  if (fits) return {};
  return fmt::format("\"{}\" is {}, and {} in the model", entry.name,
                     describe(entry.type, entry.shape), type_text(target.tensor));
}

std::string quoted(const std::vector<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

/// Which tensor of the file is which of the model's, and all that does not fit.
class Match {
 public:
  Match(const torch::nn::Module& module, const LoadWeightsOptions& options)
      : options_(options), targets_(targets_of(module)) {
    for (auto& target : targets_) {
      for (const auto& name : target.names) by_name_[name] = &target;
    }
  }

  void add(const Given& given) {
    const auto& of_file = given.entry->name;
    const auto name = options_.rename ? options_.rename(of_file) : of_file;
    if (name.empty()) return;
    const auto [before, is_new] = renamed_.try_emplace(name, of_file);
    const auto found = by_name_.find(name);
    if (!is_new) {
      problems_.push_back(
          fmt::format("\"{}\" and \"{}\" are both \"{}\"", before->second, of_file, name));
    } else if (found == by_name_.end()) {
      loaded_.unexpected.push_back(of_file);
    } else {
      auto misfit = misfit_of(given, *found->second);
      if (!misfit.empty()) problems_.push_back(std::move(misfit));
      found->second->given.push_back(given);
    }
  }

  /// Reads all, then writes all.
  LoadedWeights load(const std::string& file) {
    for (const auto& target : targets_) {
      if (target.given.empty()) loaded_.missing.push_back(target.names.front());
    }
    require_writable();
    const auto& [missing, unexpected] = loaded_;
    if (options_.strict && !missing.empty()) problems_.push_back("missing are " + quoted(missing));
    if (options_.strict && !unexpected.empty()) {
      problems_.push_back("the model has no " + quoted(unexpected));
    }
    require_none(file);
    std::vector<torch::Tensor> values;
    for (const auto& target : targets_) values.push_back(value_of(target));
    require_none(file);
    const torch::NoGradGuard no_grad;
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (values[k].defined()) targets_[k].tensor.copy_(values[k]);
    }
    return std::move(loaded_);
  }

 private:
  void require_writable() {
    for (std::size_t k = 0; k < targets_.size(); ++k) {
      if (targets_[k].given.empty()) continue;
      const auto refusal = refusal_of(targets_[k].tensor);
      if (!refusal.empty()) {
        problems_.push_back(
            fmt::format("\"{}\" of the model {}", targets_[k].names.front(), refusal));
        continue;
      }
      for (std::size_t other = 0; other < k; ++other) {
        const auto& before = targets_[other];
        if (before.given.empty() || !overlap(before.tensor, targets_[k].tensor)) continue;
        problems_.push_back(fmt::format("\"{}\" and \"{}\" of the model share some memory",
                                        before.names.front(), targets_[k].names.front()));
      }
    }
  }
  /// Undefined where the file has none.
  torch::Tensor value_of(const Target& target) {
    torch::Tensor value;
    for (const auto& given : target.given) {
      const auto read = read_tensor(*given.file, *given.entry).to(target.tensor.scalar_type());
      if (value.defined() && !same_bytes(value, read)) {
        problems_.push_back(
            fmt::format("\"{}\" and \"{}\", which are one tensor in the model, differ",
                        target.given.front().entry->name, given.entry->name));
      }
      value = read;
    }
    return value;
  }
  void require_none(const std::string& file) const {
    if (problems_.empty()) return;
    throw InvalidArgument(
        fmt::format("{} does not fit the model: {}", file, fmt::join(problems_, "; ")));
  }

  const LoadWeightsOptions& options_;
  std::vector<Target> targets_;
  std::map<std::string, Target*> by_name_;
  std::map<std::string, std::string> renamed_;  ///< the model's name, and the file's
  LoadedWeights loaded_;
  std::vector<std::string> problems_;
};

}  // namespace

LoadedWeights load_weights(torch::nn::Module& module, const std::string& file,
                           const LoadWeightsOptions& options) {
  const GivenTensors tensors(file);
  Match match(module, options);
  for (const auto& given : tensors) match.add(given);
  return match.load(file);
}

}  // namespace tutti
