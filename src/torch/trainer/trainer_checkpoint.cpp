#include "torch/trainer/trainer_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/log_line.h"
#include "kernels/hash.h"
#include "torch/model/arithmetic.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::pair<torch::ScalarType, StoredType> kTypes[] = {
    {torch::kFloat64, StoredType::F64},
    {torch::kFloat32, StoredType::F32},
    {torch::kFloat16, StoredType::F16},
    {torch::kBFloat16, StoredType::BF16},
    {torch::kFloat8_e5m2, StoredType::F8_E5M2},
    {torch::kFloat8_e4m3fn, StoredType::F8_E4M3},
    {torch::kComplexFloat, StoredType::C64},
    {torch::kInt64, StoredType::I64},
    {torch::kInt32, StoredType::I32},
    {torch::kInt16, StoredType::I16},
    {torch::kInt8, StoredType::I8},
    {torch::kUInt64, StoredType::U64},
    {torch::kUInt32, StoredType::U32},
    {torch::kUInt16, StoredType::U16},
    {torch::kUInt8, StoredType::U8},
    {torch::kBool, StoredType::BOOL}};

std::optional<StoredType> stored_type_of(const torch::Tensor& tensor) {
  for (const auto& [type, stored] : kTypes) {
    if (type == tensor.scalar_type()) return stored;
  }
  return {};
}

/// The type of a tensor that was found to be storable when it came in.
StoredType stored_type_of(const std::string& name, const torch::Tensor& tensor) {
  require_storable(fmt::format("\"{}\"", name), tensor);
  return *stored_type_of(tensor);
}

torch::ScalarType scalar_type_of(StoredType stored) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const auto& pair) { return pair.second == stored; });
  return found->first;  // every stored type is in the table
}

/// Entry of one tensor, or InvalidArgument that says how the file differs.
const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& where,
                            const std::string& name, const torch::Tensor& tensor) {
  const auto* entry = file.find(name);
  if (entry == nullptr) throw InvalidArgument(fmt::format("{} lacks \"{}\"", where, name));
  const auto type = stored_type_of(name, tensor);
  const auto shape = tensor.sizes().vec();
  if (entry->type != type || entry->shape != shape) {
    throw InvalidArgument(fmt::format("{}: \"{}\" is {}, here it is {}", where, name,
                                      describe(entry->type, entry->shape), describe(type, shape)));
  }
  return *entry;
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void read_into(const torch::Tensor& tensor, const SafetensorsFile& file, const TensorEntry& entry) {
  const torch::NoGradGuard no_grad;
  if (tensor.is_contiguous()) {
    file.read(entry, bytes_of(tensor));
  } else {
    const auto rows = torch::empty(tensor.sizes(), tensor.options().requires_grad(false));
    file.read(entry, bytes_of(rows));
    tensor.detach().copy_(rows);
  }
}

}  // namespace

void require_storable(const std::string& what, const torch::Tensor& tensor) {
  if (stored_type_of(tensor)) return;
  throw Unsupported(
      fmt::format("{} is of type {}, which a checkpoint cannot hold: let it be of another type, or "
                  "a plain member of the module that is computed when it is made",
                  what, c10::toString(tensor.scalar_type())));
}

nlohmann::json to_json(const RunPosition& position) {
  nlohmann::json state = {{"steps", position.steps},
                          {"dropped_in_a_row", position.dropped_in_a_row},
                          {"epoch", position.data.epoch},
                          {"samples_taken", position.data.taken},
                          {"dataset_size", position.data.dataset_size},
                          {"loss_scale", position.loss_scale.factor},
                          {"good_steps", position.loss_scale.good_steps},
                          {"averaged_steps", position.averaged_steps},
                          {"updates", position.updates},
                          {"replica_updates", position.own.updates},
                          {"replica_moved", position.own.moved},
                          {"replica_drops", position.own.drops},
                          {"optimizer_numbers", position.optimizer_numbers}};
  if (!position.turns.empty()) state["turns"] = position.turns;
  return state;
}

RunPosition position_of(const nlohmann::json& state) {
  const auto number = [&](const char* name) { return state.at(name).get<std::int64_t>(); };
  return {.steps = number("steps"),
          .dropped_in_a_row = number("dropped_in_a_row"),
          .data = {number("epoch"), number("samples_taken"), number("dataset_size")},
          .loss_scale = {state.at("loss_scale").get<double>(), number("good_steps")},
          .averaged_steps = number("averaged_steps"),
          .updates = state.at("updates").get<std::vector<std::int64_t>>(),
          .own = {state.value("replica_updates", std::vector<std::vector<std::int64_t>>()),
                  state.value("replica_moved", std::vector<std::uint8_t>()),
                  state.value("replica_drops", std::vector<std::int64_t>())},
          .optimizer_numbers = state.at("optimizer_numbers"),
          .turns = state.value("turns", std::vector<std::uint64_t>())};
}

RunPosition position_of(const Checkpoint& checkpoint, std::size_t parameters) {
  const auto where = checkpoint.folder().string();
  RunPosition position;
  try {
    position = position_of(nlohmann::json(checkpoint.manifest().state));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(
        fmt::format("{}: its manifest lacks where the run stands ({})", where, error.what()));
  }
  if (position.updates.size() != parameters) {
    throw InvalidArgument(
        fmt::format("{}: its manifest counts updates of {} parameters, here there are {}", where,
                    position.updates.size(), parameters));
  }
  return position;
}

nlohmann::json structure_of(const torch::nn::Module& module) {
  auto modules = nlohmann::json::array();
  for (const auto& item : module.named_modules("", false)) modules.push_back(item.key());
  auto same_as = nlohmann::json::object();
  std::map<const void*, std::string> first;
  for (const auto& item : module.named_parameters()) {
    const auto [at, is_new] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) same_as[item.key()] = at->second;
  }
  return {{"modules", modules}, {"same_as", same_as}};
}

std::string arithmetic_differences(const Checkpoint& checkpoint) {
  const auto& state = checkpoint.manifest().state;
  const auto found = state.find(kArithmetic);
  if (found == state.end()) return "";
  RunFingerprint then;
  for (const auto& [name, value] : found->second.items()) {
    if (value.is_string()) then[name] = value.get<std::string>();
  }
  return facts_diff(then, arithmetic_facts());
}

void save_checkpoint(CheckpointStore& store, const std::string& run, const RunFingerprint& facts,
                     const RunPosition& position, const nlohmann::json& structure,
                     const TensorFiles& files) {
  CheckpointContent content{.step = position.steps,
                            .facts = facts,
                            .state = to_json(position).get<std::map<std::string, nlohmann::json>>(),
                            .run = run};
  content.state[kStructure] = structure;
  content.state[kArithmetic] = arithmetic_facts();
  std::vector<torch::Tensor> kept;  // row-major copies of tensors that lie otherwise
  for (const auto& [file, tensors] : files) {
    SafetensorsContent stored{.name = file};
    for (const auto& [name, tensor] : tensors) {
      kept.push_back(tensor.detach().contiguous());
      stored.tensors.push_back({.name = name,
                                .type = stored_type_of(name, tensor),
                                .shape = tensor.sizes().vec(),
                                .data = bytes_of(kept.back())});
    }
    content.files.push_back(std::move(stored));
  }
  store.save(content);
}

namespace {

/// Where the newest is damaged, the error says what a fallback would take.
std::optional<Checkpoint> open_newest(const CheckpointStore& store, const RunFingerprint& facts,
                                      const std::optional<std::string>& written_by) {
  try {
    const auto newest = written_by ? store.newest_of(*written_by) : store.newest();
    if (!newest) return std::nullopt;
    return store.open(*newest);
  } catch (const InvalidArgument& error) {
    std::optional<Checkpoint> whole;
    try {
      whole = store.newest_good(written_by).checkpoint;
    } catch (const std::exception&) {
      // What the first error says is worth more.
    }
    if (!whole || !facts_diff(whole->manifest().facts, facts).empty()) throw;
    throw InvalidArgument(fmt::format("{}. LoadOptions::fall_back passes over it: {} is whole",
                                      error.what(), whole->folder().string()));
  }
}

}  // namespace

std::optional<Checkpoint> open_checkpoint(const CheckpointStore& store, const RunFingerprint& facts,
                                          bool fall_back,
                                          const std::optional<std::string>& written_by) {
  std::optional<Checkpoint> checkpoint;
  if (fall_back) {
    auto found = store.newest_good(written_by);
    for (const auto& reason : found.passed_over) {
      log_warning(fmt::format("a checkpoint is passed over: {}", reason));
    }
    if (!found.checkpoint && found.damaged > 0) {
      throw InvalidArgument(
          fmt::format("none of the checkpoints in {} is good", store.dir().string()));
    }
    checkpoint = std::move(found.checkpoint);
  } else {
    checkpoint = open_newest(store, facts, written_by);
  }
  if (!checkpoint) return checkpoint;
  const auto differences = facts_diff(checkpoint->manifest().facts, facts);
  if (!differences.empty()) {
    throw InvalidArgument(fmt::format("{} is a checkpoint of another run:\n{}",
                                      checkpoint->folder().string(), differences));
  }
  return checkpoint;
}

void fill(const Checkpoint& checkpoint, const TensorFiles& files) {
  const auto where = checkpoint.folder().string();
  std::vector<SafetensorsFile> stored;
  for (const auto& [file, tensors] : files) {
    stored.push_back(checkpoint.file(file));
    for (const auto& [name, tensor] : tensors) {
      entry_of(stored.back(), where + "/" + file, name, tensor);
    }
    if (stored.back().tensors().size() != tensors.size()) {
      throw InvalidArgument(fmt::format("{}/{} holds {} tensors, here there are {}", where, file,
                                        stored.back().tensors().size(), tensors.size()));
    }
  }
  try {
    for (std::size_t f = 0; f < files.size(); ++f) {
      for (const auto& [name, tensor] : files[f].second) {
        read_into(tensor, stored[f],
                  entry_of(stored[f], where + "/" + files[f].first, name, tensor));
      }
    }
  } catch (const std::exception& error) {
    throw Mismatch(fmt::format("{}, after other tensors had been replaced", error.what()));
  }
}

NamedTensors load_tensors(const Checkpoint& checkpoint, const std::string& file) {
  const auto stored = checkpoint.file(file);
  NamedTensors tensors;
  for (const auto& entry : stored.tensors()) {
    auto tensor = torch::empty(entry.shape, scalar_type_of(entry.type));
    stored.read(entry, bytes_of(tensor));
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

NamedDigests digests_of(const TensorFiles& files) {
  NamedDigests digests;
  for (const auto& [file, tensors] : files) {
    const std::string before = file == kBuffersFile ? "buffer:" : "";
    const std::string after = file == kMastersFile    ? "/master"
                              : file == kAveragesFile ? "/average"
                                                      : "";
    for (const auto& [name, tensor] : tensors) {
      const auto rows = tensor.detach().contiguous();
      Sha256 hash;
      hash.update(rows.data_ptr(), rows.nbytes());
      digests.emplace_back(before + name + after, hash.hex());
    }
  }
  return digests;
}

}  // namespace tutti
