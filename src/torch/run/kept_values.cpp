#include "torch/run/kept_values.h"

#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/log_line.h"
#include "run/files/strict_json.h"
#include "torch/model/resolved.h"
#include "torch/run/stored_tensors.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Name under which the manifest keeps the kinds of the values, where there are some.
constexpr const char* kKept = "kept";
constexpr std::size_t kMaxShown = 40;

struct KindOf {
  std::string operator()(const double* /*value*/) const { return "double"; }
  std::string operator()(const std::int64_t* /*value*/) const { return "int64"; }
  std::string operator()(const std::string* /*value*/) const { return "string"; }
  std::string operator()(const torch::Tensor* value) const {
    return fmt::format("tensor of {}", name_of(view_of("", *value).type));
  }
};

std::string kind_of(const KeptValues::Variable& variable) { return std::visit(KindOf{}, variable); }

/// The reason why a checkpoint cannot contain the tensor; "" where it can.
std::string fault_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "it is undefined";
  if (tensor.layout() != torch::kStrided) return "it is sparse";
  if (!tensor.device().is_cpu()) return "it is not on the CPU";
  if (!is_resolved(tensor)) {
    return "it has torch's negative or conjugate bit, and its memory is not what its elements are: "
           "clone() makes one that can be kept";
  }
  if (!is_storable(tensor)) {
    return fmt::format("its type is {}, which a checkpoint cannot hold",
                       c10::toString(tensor.scalar_type()));
  }
  return "";
}

struct ViewOf {
  const std::string& name;
  TensorView operator()(double* value) const { return scalar(StoredType::F64, value); }
  TensorView operator()(std::int64_t* value) const { return scalar(StoredType::I64, value); }
  TensorView operator()(std::string* value) const {
    return {.name = name,
            .type = StoredType::U8,
            .shape = {static_cast<std::int64_t>(value->size())},
            .strides = {1},
            .data = reinterpret_cast<std::byte*>(value->data())};
  }
  TensorView operator()(torch::Tensor* value) const { return view_of(name, *value); }
  TensorView scalar(StoredType type, void* at) const {
    return {.name = name, .type = type, .data = static_cast<std::byte*>(at)};
  }
};

/// Text of a value in errors about values that differ.
struct TextOf {
  std::string operator()(const double* value) const { return fmt::format("{}", *value); }
  std::string operator()(const std::int64_t* value) const { return fmt::format("{}", *value); }
  std::string operator()(const std::string* value) const {
    return fmt::format("\"{}\"{}", value->substr(0, kMaxShown),
                       value->size() > kMaxShown ? "…" : "");
  }
  std::string operator()(const torch::Tensor* value) const {
    const auto fault = fault_of(*value);
    if (!fault.empty()) return fmt::format("a tensor of which {}", fault);
    const auto view = view_of("", *value);
    return describe(view.type, view.shape);
  }
};

/// Shape and bytes.
void add_to(Sha256& hash, const TensorView& view) {
  const auto text = describe(view.type, view.shape);
  hash.update(text.data(), text.size());
  std::vector<std::byte> copy;
  const auto rows = rows_of(view, copy);
  hash.update(rows.data(), rows.size());
}

/// Whether the checkpoint's tensor can be what the variable was saved as.
struct Fits {
  const torch::Tensor& from;
  bool operator()(const double* /*value*/) const { return is_one(torch::kFloat64); }
  bool operator()(const std::int64_t* /*value*/) const { return is_one(torch::kInt64); }
  bool operator()(const std::string* /*value*/) const {
    return from.scalar_type() == torch::kUInt8 && from.dim() == 1;
  }
  bool operator()(const torch::Tensor* value) const {
    return from.scalar_type() == value->scalar_type();
  }
  bool is_one(torch::ScalarType type) const {
    return from.scalar_type() == type && from.dim() == 0;
  }
};

struct Restore {
  const torch::Tensor& from;
  void operator()(double* value) const { *value = from.item<double>(); }
  void operator()(std::int64_t* value) const { *value = from.item<std::int64_t>(); }
  void operator()(std::string* value) const {
    value->assign(static_cast<const char*>(from.data_ptr()), from.nbytes());
  }
  /// Restores the tensor in place, where its other handles see it, unless its shape differs.
  void operator()(torch::Tensor* value) const {
    const torch::NoGradGuard no_grad;
    if (value->sizes() == from.sizes() && at::has_internal_overlap(*value) != at::MemOverlap::Yes) {
      value->copy_(from);
    } else {
      *value = from.clone().set_requires_grad(value->requires_grad());
    }
  }
};

}  // namespace

void KeptValues::add(const std::string& name, Variable variable) {
  if (name.empty()) throw InvalidArgument("keep(): a kept value needs a name");
  if (!is_utf8(name) || name == kMetadataKey) {
    throw InvalidArgument(fmt::format("keep({}): no checkpoint can hold this name", shown(name)));
  }
  if (variables_.contains(name)) {
    throw InvalidArgument(
        fmt::format("keep(\"{}\"): \"{}\" keeps a value of this name already", name, model_));
  }
  if (auto* const* const tensor = std::get_if<torch::Tensor*>(&variable)) {
    const auto fault = fault_of(**tensor);
    if (!fault.empty()) {
      throw InvalidArgument(
          fmt::format("keep(\"{}\"): a dense tensor on the CPU is needed: {}", name, fault));
    }
  }
  variables_.emplace(name, variable);
}

void KeptValues::require_sound() const {
  for (const auto& [name, variable] : variables_) {
    const auto* const* const tensor = std::get_if<torch::Tensor*>(&variable);
    if (tensor == nullptr) continue;
    const auto fault = fault_of(**tensor);
    if (!fault.empty()) {
      throw InvalidArgument(fmt::format("kept \"{}\" of \"{}\": {}", name, model_, fault));
    }
  }
}

/// For each name the kind, and with `values` a text and a digest.
nlohmann::json KeptValues::entries(bool values) const {
  auto entries = nlohmann::json::object();
  for (const auto& [name, variable] : variables_) {
    auto& entry = entries[name];
    const auto* const* const tensor = std::get_if<torch::Tensor*>(&variable);
    const bool is_whole = tensor == nullptr || fault_of(**tensor).empty();
    entry["kind"] = is_whole ? kind_of(variable) : "tensor";
    if (!values) continue;
    entry["text"] = std::visit(TextOf{}, variable);
    if (!is_whole) continue;
    Sha256 hash;
    add_to(hash, std::visit(ViewOf{name}, variable));
    entry["digest"] = hash.hex();
  }
  return entries;
}

void KeptValues::require_equal(const std::string& when, bool values, const Group& group,
                               const Gather& gather) const {
  const auto mine = entries(values).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto all = gather(std::as_bytes(std::span(mine)));
  for (int r = 1; r < group.size(); ++r) {
    const auto& text = all[static_cast<std::size_t>(r)];
    if (text != all[0]) {
      compare(when, parse_json(all[0]), parse_json(text), group.job_rank(0), group.job_rank(r));
    }
  }
}

void KeptValues::compare(const std::string& when, const nlohmann::json& first,
                         const nlohmann::json& other, int first_rank, int other_rank) const {
  const auto require_all = [&](const nlohmann::json& in, const nlohmann::json& of, int without,
                               int with) {
    for (const auto& [name, entry] : of.items()) {
      if (in.contains(name)) continue;
      throw Mismatch(
          fmt::format("{}: rank {} keeps \"{}\" in \"{}\", rank {} does not: all workers call "
                      "keep() for the same names",
                      when, with, name, model_, without));
    }
  };
  require_all(other, first, other_rank, first_rank);
  require_all(first, other, first_rank, other_rank);
  for (const auto& [name, entry] : first.items()) {
    const auto& theirs = other.at(name);
    if (theirs == entry) continue;
    const char* const shown = theirs.at("kind") == entry.at("kind") ? "text" : "kind";
    const auto one = entry.at(shown).get<std::string>();
    const auto another = theirs.at(shown).get<std::string>();
    throw Mismatch(fmt::format(
        "{}: kept \"{}\" of \"{}\" is {} on rank {}, {} on rank {}{}: what is kept is the same on "
        "all workers",
        when, name, model_, one, first_rank, another, other_rank,
        one == another ? " with other bytes" : ""));
  }
}

void KeptValues::list(StateTensors& tensors) const {
  for (const auto& [name, variable] : variables_) {
    tensors[StateFile::kept].push_back(std::visit(ViewOf{name}, variable));
  }
}

void KeptValues::write(nlohmann::json& state) const {
  for (const auto& [name, variable] : variables_) state[kKept][name] = kind_of(variable);
}

void KeptValues::check(const nlohmann::json& state) const {
  const auto kinds = state.value(kKept, std::map<std::string, std::string>());
  std::vector<std::string> unknown;
  for (const auto& [name, kind] : kinds) {
    const auto found = variables_.find(name);
    if (found == variables_.end()) {
      unknown.push_back(fmt::format("\"{}\"", name));
    } else if (const auto here = kind_of(found->second); here != kind) {
      throw InvalidArgument(fmt::format("kept \"{}\" of \"{}\" is {} in the checkpoint, {} here",
                                        name, model_, kind, here));
    }
  }
  if (unknown.empty()) return;
  throw InvalidArgument(
      fmt::format("the checkpoint keeps {}, which \"{}\" does not keep here: call keep() before "
                  "load(), or it would be lost with the next save()",
                  fmt::join(unknown, ", "), model_));
}

std::vector<std::byte> KeptValues::read(const Checkpoint& checkpoint) const {
  NamedTensors found;
  if (checkpoint.manifest().files.contains(name_of(StateFile::kept))) {
    found = load_tensors(checkpoint, StateFile::kept);
  }
  const auto& state = checkpoint.manifest().state;
  const auto kinds = state.find(kKept);
  const auto named = kinds == state.end() ? 0 : kinds->second.size();
  const auto fits = [&](const auto& item) {  // names that check() has found to be here
    return kinds->second.contains(item.first) &&
           std::visit(Fits{item.second}, variables_.at(item.first));
  };
  if (found.size() != named || !std::ranges::all_of(found, fits)) {
    throw InvalidArgument(
        fmt::format("{}: {} does not hold the kept values that the manifest names",
                    checkpoint.folder().string(), name_of(StateFile::kept)));
  }
  for (const auto& [name, variable] : variables_) {
    const bool is_there = std::ranges::any_of(
        found, [&, &name = name](const auto& item) { return item.first == name; });
    if (is_there) continue;
    log_warning(fmt::format("{} does not keep \"{}\": it stays what it is",
                            checkpoint.folder().string(), name));
  }
  return packed(found);
}

void KeptValues::restore(const nlohmann::json& /*state*/, std::span<const std::byte> read) {
  for (const auto& [name, tensor] : unpacked(read)) {
    std::visit(Restore{tensor}, variables_.at(name));
  }
}

void KeptValues::hash(Sha256& hash) const {
  require_sound();
  for (const auto& [name, variable] : variables_) {
    hash.update(name.data(), name.size());
    add_to(hash, std::visit(ViewOf{name}, variable));
  }
}

}  // namespace tutti
