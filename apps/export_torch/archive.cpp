#include "archive.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch/run/model_facts.h"
#include "torch/run/stored_tensors.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

/// Reading an archive recurses once per level.
constexpr std::ptrdiff_t kMaxDepth = 128;
constexpr std::size_t kShownOfName = 60;

/// A module's own tensors and its children, in the order in which they were added.
struct ModuleNode {
  struct Entry {
    std::string name;
    torch::Tensor tensor;
    bool is_buffer;
  };
  std::string name;
  std::vector<Entry> entries;
  std::vector<ModuleNode> children;
  std::unordered_map<std::string, std::size_t> by_name;  ///< of `children`

  ModuleNode& child(const std::string& wanted) {
    const auto [found, is_new] = by_name.try_emplace(wanted, children.size());
    if (is_new) children.push_back({.name = wanted, .entries = {}, .children = {}, .by_name = {}});
    return children[found->second];
  }
  /// The module of that name below this one, and its parents: made where they are missing.
  ModuleNode& module(const std::string& path) {
    if (path.empty()) return *this;
    const auto depth = std::ranges::count(path, '.') + 1;
    if (depth > kMaxDepth) {
      throw InvalidArgument(
          fmt::format("a module lies {} modules deep, which torch::load and torch.jit.load cannot "
                      "be relied on to "
                      "read: {} at most can be exported; its name begins with \"{}\"",
                      depth, kMaxDepth, path.substr(0, kShownOfName)));
    }
    auto* at = this;
    for (std::size_t begin = 0; begin <= path.size();) {
      const auto dot = std::min(path.find('.', begin), path.size());
      at = &at->child(path.substr(begin, dot - begin));
      begin = dot + 1;
    }
    return *at;
  }
  void add(const std::string& path, const torch::Tensor& tensor, bool is_buffer) {
    const auto dot = path.rfind('.');
    auto& owner = module(dot == std::string::npos ? "" : path.substr(0, dot));
    owner.entries.push_back(
        {dot == std::string::npos ? path : path.substr(dot + 1), tensor, is_buffer});
  }
};

void write(const ModuleNode& node, torch::serialize::OutputArchive& archive) {
  for (const auto& entry : node.entries) archive.write(entry.name, entry.tensor, entry.is_buffer);
  for (const auto& child : node.children) {
    torch::serialize::OutputArchive nested(archive.compilation_unit());
    write(child, nested);
    archive.write(child.name, nested);
  }
}

Checkpoint open(const std::filesystem::path& path) {
  if (is_checkpoint_folder(*host_files(), path)) {
    return open_checkpoint_folder(host_files(), path);
  }
  const CheckpointStore store(host_files(), path);
  const auto newest = store.newest_of_last_run();
  if (!newest) throw InvalidArgument(fmt::format("there is no checkpoint in {}", path.string()));
  return store.open(*newest);
}

/// The parameters by name, of their own types.
std::map<std::string, torch::Tensor> parameters_of(const Checkpoint& checkpoint, bool averages) {
  std::map<std::string, torch::Tensor> found;
  for (const auto& [name, tensor] : load_tensors(checkpoint, StateFile::parameters))
    found[name] = tensor;
  // Of layers that are split over workers the checkpoint has the whole, and their states beside it.
  const auto& state = checkpoint.manifest().state;
  if (const auto split = state.find(kSplitLayers); split != state.end()) {
    for (const auto& [name, tensor] : load_tensors(checkpoint, StateFile::split)) {
      const auto dot = name.rfind('.');
      const bool is_weight = name.substr(dot + 1) == "weight";
      if (is_weight && split->second.contains(name.substr(0, dot))) found[name] = tensor;
    }
  }
  if (!averages) return found;
  if (!checkpoint.manifest().files.contains(name_of(StateFile::averages))) {
    throw InvalidArgument(fmt::format("{} has no moving averages", checkpoint.folder().string()));
  }
  for (const auto& [name, tensor] : load_tensors(checkpoint, StateFile::averages)) {
    found.at(name) = tensor.to(found.at(name).scalar_type());
  }
  return found;
}

ModuleNode model_of(const Checkpoint& checkpoint, bool averages) {
  ModuleNode model;
  const auto& structure = checkpoint.manifest().state.at(kStructure);
  for (const auto& name : structure.at("modules")) model.module(name.get<std::string>());
  auto parameters = parameters_of(checkpoint, averages);
  for (const auto& [name, first] : structure.at("same_as").items()) {
    parameters[name] = parameters.at(first.get<std::string>());
  }
  for (const auto& [name, tensor] : parameters) model.add(name, tensor, false);
  for (const auto& [name, tensor] : load_tensors(checkpoint, StateFile::buffers)) {
    model.add(name, tensor, true);
  }
  return model;
}

}  // namespace

std::int64_t export_archive(const ExportOptions& options) {
  const auto checkpoint = open(options.checkpoint);
  torch::serialize::OutputArchive archive;
  try {
    write(model_of(checkpoint, options.averages), archive);
  } catch (const std::out_of_range&) {
    throw InvalidArgument(
        fmt::format("{} is not a Trainer's checkpoint", checkpoint.folder().string()));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(fmt::format("{}: {}", checkpoint.folder().string(), error.what()));
  }
  const auto part = options.archive.string() + ".part";
  archive.save_to(part);
  std::filesystem::rename(part, options.archive);
  return checkpoint.manifest().step;
}

}  // namespace tutti::command
