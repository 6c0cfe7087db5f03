#include "run/state/run_state.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error_kind.h"
#include "base/log_line.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Returns the entry of one tensor, or throws InvalidArgument with the difference.
const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& where,
                            const TensorView& tensor) {
  const auto* const entry = file.find(tensor.name);
  if (entry == nullptr) throw InvalidArgument(fmt::format("{} lacks \"{}\"", where, tensor.name));
  if (entry->type != tensor.type || entry->shape != tensor.shape) {
    throw InvalidArgument(fmt::format("{}: \"{}\" is {}, here it is {}", where, tensor.name,
                                      describe(entry->type, entry->shape),
                                      describe(tensor.type, tensor.shape)));
  }
  return *entry;
}

void read_into(const TensorView& tensor, const SafetensorsFile& file, const TensorEntry& entry) {
  if (is_row_major(tensor)) return file.read(entry, {tensor.data, bytes_of(tensor)});
  std::vector<std::byte> rows(bytes_of(tensor));
  file.read(entry, rows);
  set_rows(tensor, rows);
}

/// Fills the tensors, once all of them were found to fit.
void fill(const Checkpoint& checkpoint, const StateTensors& tensors) {
  struct Place {
    const SafetensorsFile& file;
    const TensorEntry& entry;
    const TensorView& tensor;
  };
  std::map<StateFile, SafetensorsFile> files;
  std::vector<Place> places;
  for (const auto& [which, list] : tensors) {
    if (!traits_of(which).is_filled) continue;
    const auto& file = files.emplace(which, checkpoint.file(name_of(which))).first->second;
    const auto where = fmt::format("{}/{}", checkpoint.folder().string(), name_of(which));
    for (const auto& tensor : list) places.push_back({file, entry_of(file, where, tensor), tensor});
    if (file.tensors().size() == list.size()) continue;
    throw InvalidArgument(fmt::format("{} holds {} tensors, here there are {}", where,
                                      file.tensors().size(), list.size()));
  }
  try {
    for (const auto& [file, entry, tensor] : places) read_into(tensor, file, entry);
  } catch (const std::exception& error) {
    throw Mismatch(fmt::format("{}, after other tensors had been replaced", error.what()));
  }
}

/// Its length stands before a piece.
void append_piece(std::vector<std::byte>& to, std::span<const std::byte> piece) {
  append(to, std::uint64_t{piece.size()});
  append_all(to, piece);
}

std::span<const std::byte> piece_of(ByteReader& from) {
  const auto bytes = from.value<std::uint64_t>();
  return from.bytes(bytes);
}

}  // namespace

RunState RunState::of_run() const {
  RunState state;
  state.is_of_run_ = true;
  std::ranges::copy_if(parts_, std::back_inserter(state.parts_),
                       [](const auto* part) { return !part->outlives_run(); });
  return state;
}

StateTensors RunState::tensors() const {
  StateTensors tensors;
  for (auto* const part : parts_) part->list(tensors);
  if (is_of_run_)
    std::erase_if(tensors, [](const auto& file) { return traits_of(file.first).outlives_run; });
  return tensors;
}

nlohmann::json RunState::numbers() const {
  auto state = nlohmann::json::object();
  for (auto* const part : parts_) part->write(state);
  return state;
}

bool RunState::is_on_hosts() const {
  return std::ranges::any_of(parts_, [](const auto* part) { return part->is_on_hosts(); });
}

void RunState::bring() {
  for (auto* const part : parts_) part->bring();
}

void RunState::gather(const RunPart::Gather& gather) {
  for (auto* const part : parts_) part->gather(gather);
}

void RunState::release() {
  for (auto* const part : parts_) part->release();
}

void RunState::write(CheckpointStore& store, CheckpointContent content) const {
  const auto state = numbers();
  for (const auto& [name, value] : state.items()) content.state[name] = value;
  const auto all = tensors();
  std::vector<std::vector<std::byte>> copies;  // of tensors that do not lie row-major
  for (const auto& [which, list] : all) {
    SafetensorsContent file{.name = name_of(which)};
    for (const auto& tensor : list) {
      file.tensors.push_back({.name = tensor.name,
                              .type = tensor.type,
                              .shape = tensor.shape,
                              .data = rows_of(tensor, copies.emplace_back())});
    }
    content.files.push_back(std::move(file));
  }
  store.save(content);
}

std::vector<std::byte> RunState::read(const Checkpoint& checkpoint) const {
  const nlohmann::json state(checkpoint.manifest().state);
  std::vector<std::byte> pieces;
  const auto text = state.dump();
  append_piece(pieces, std::as_bytes(std::span(text)));
  for (auto* const part : parts_) {
    try {
      part->check(state);
    } catch (const nlohmann::json::exception& error) {
      throw InvalidArgument(fmt::format("{}: its manifest lacks where the run stands: {} ({})",
                                        checkpoint.folder().string(), part->name(), error.what()));
    }
    append_piece(pieces, part->read(checkpoint));
  }
  fill(checkpoint, tensors());
  return pieces;
}

void RunState::restore(std::span<const std::byte> read) {
  ByteReader from{read};
  const auto state = parse_json(piece_of(from));
  for (auto* const part : parts_) part->restore(state, piece_of(from));
}

std::string RunState::sha256(std::size_t parameters) const {
  Sha256 hash;
  for (std::size_t p = 0; p < parameters; ++p) {
    for (auto* const part : parts_) part->hash_parameter(p, hash);
  }
  for (auto* const part : parts_) part->hash(hash);
  return hash.hex();
}

NamedDigests RunState::digests() const {
  NamedDigests digests;
  std::vector<std::byte> copy;
  for (const auto& [file, list] : tensors()) {
    const auto traits = traits_of(file);
    if (!traits.is_logged) continue;
    for (const auto& tensor : list) {
      const auto rows = rows_of(tensor, copy);
      Sha256 hash;
      hash.update(rows.data(), rows.size());
      digests.emplace_back(traits.digest_prefix + tensor.name + traits.digest_suffix, hash.hex());
    }
  }
  for (auto* const part : parts_) {
    for (auto& digest : part->digests()) digests.push_back(std::move(digest));
  }
  return digests;
}

namespace {

NewestGood good_of(const CheckpointStore& store, const std::optional<std::string>& written_by) {
  return written_by ? store.newest_good(written_by) : store.newest_good_of_last_run();
}

/// Where the newest checkpoint is damaged, the error names the one that a fallback would take.
std::optional<Checkpoint> open_newest(const CheckpointStore& store, const RunFingerprint& facts,
                                      const std::optional<std::string>& written_by) {
  try {
    const auto newest = written_by ? store.newest_of(*written_by) : store.newest_of_last_run();
    if (!newest) return std::nullopt;
    return store.open(*newest);
  } catch (const Error& error) {
    const auto kind = error_kind();
    std::optional<Checkpoint> whole;
    try {
      whole = good_of(store, written_by).checkpoint;
    } catch (const std::exception&) {
      // The first error is more important.
    }
    if (!whole || !facts_diff(whole->manifest().facts, facts).empty()) throw;
    std::rethrow_exception(
        make_error(kind, fmt::format("{}. LoadOptions::fall_back passes over it: {} is whole",
                                     error.what(), whole->folder().string())));
  }
}

}  // namespace

std::optional<Checkpoint> open_checkpoint(const CheckpointStore& store, const RunFingerprint& facts,
                                          bool fall_back,
                                          const std::optional<std::string>& written_by) {
  std::optional<Checkpoint> checkpoint;
  if (fall_back) {
    auto found = good_of(store, written_by);
    for (const auto& reason : found.passed_over) {
      log_warning(fmt::format("a checkpoint is passed over: {}", reason));
    }
    if (!found.checkpoint && found.damaged > 0) {
      throw Corrupt(fmt::format("none of the checkpoints in {} is good", store.dir().string()));
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

}  // namespace tutti
