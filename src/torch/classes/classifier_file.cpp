#include "torch/classes/classifier_file.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/files.h"
#include "base/number.h"
#include "comm/gather_bytes.h"
#include "kernels/hash.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

constexpr const char* kUpdates = "tutti.updates";

/// What the first member has to say, on all members.
std::string from_first(const Group& group, const std::string& text) {
  const auto mine = group.rank() == 0 ? text : std::string();
  return gather_texts(group, mine, {.label = "outcome"})[0];
}

/// Passes on what the first member has thrown: PeerFailed on the others.
void rethrow_everywhere(const Group& group, const std::exception_ptr& thrown) {
  std::string text;
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    text = e.what();
  }
  text = from_first(group, text);
  if (thrown) std::rethrow_exception(thrown);
  if (text.empty()) return;
  throw PeerFailed(group.job_rank(0), 0, fmt::format("rank {}: {}", group.job_rank(0), text));
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

torch::Tensor& ClassifierFile::tensor(std::size_t which, ClassPiece& piece) const {
  return which == 0 ? piece.weights() : piece.states()[which - 1];
}

torch::ScalarType ClassifierFile::type_of(std::size_t which) const {
  const auto& settings = layer_.settings();
  return which == 0 ? settings.options.dtype : settings.computed;
}

StoredType ClassifierFile::stored_type_of(std::size_t which) const {
  return stored_type(dtype_of(torch::empty({0}, type_of(which))));
}

std::string ClassifierFile::tensor_name(std::size_t which) const {
  return which == 0 ? "weight" : layer_.settings().rule.states[which - 1].name;
}

std::vector<SplitTensor> ClassifierFile::split_tensors() const {
  std::vector<SplitTensor> all;
  for (std::size_t which = 0; which < tensors(); ++which) {
    for (auto& piece : layer_.own_pieces()) {
      all.push_back(
          {tensor_name(which), tensor(which, piece), piece.first(), layer_.settings().classes});
    }
  }
  return all;
}

void ClassifierFile::move_pieces(std::size_t which, To to,
                                 const std::function<void(std::span<std::byte>)>& each) const {
  const auto& group = layer_.group();
  const auto& settings = layer_.settings();
  const bool is_first = group.rank() == 0;
  const auto type = type_of(which);
  auto next = layer_.own_pieces().begin();
  for (int member = 0; member < group.size(); ++member) {
    const auto [first, last] = settings.pieces_of(member, group.size());
    for (auto piece = first; piece < last; ++piece) {
      auto own = torch::empty({0}, type);
      if (group.rank() == member) own = tensor(which, *next++);
      if (member == 0) {
        if (is_first) each(bytes_of(own));
        continue;
      }
      const auto [begin, end] = settings.classes_of(piece);
      std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()));
      auto& count = counts[static_cast<std::size_t>(member)];
      count = (end - begin) * settings.features;
      const auto whole = torch::empty({is_first ? count : 0}, type);
      const auto all = is_first ? view_of(whole) : View{nullptr, 0, dtype_of(own)};
      if (to == To::owner) {
        if (is_first) each(bytes_of(whole));
        group.scatter_variable(all, view_of(own), counts, 0, {.label = "piece"});
      } else {
        group.gather_variable(view_of(own), all, counts, 0, {.label = "piece"});
        if (is_first) each(bytes_of(whole));
      }
    }
  }
}

std::string ClassifierFile::digest(std::size_t which, std::string_view name) const {
  Sha256 hash;
  hash.update(name.data(), name.size());
  move_pieces(which, To::first,
              [&](std::span<const std::byte> bytes) { hash.update(bytes.data(), bytes.size()); });
  return from_first(layer_.group(), hash.hex());
}

torch::Tensor ClassifierFile::whole(std::size_t which) const {
  torch::Tensor all;
  std::size_t at = 0;
  const auto& settings = layer_.settings();
  if (layer_.group().rank() == 0) {
    all = torch::empty({settings.classes, settings.features}, type_of(which));
  }
  move_pieces(which, To::first, [&](std::span<const std::byte> bytes) {
    std::ranges::copy(bytes, bytes_of(all).begin() + static_cast<std::ptrdiff_t>(at));
    at += bytes.size();
  });
  return all;
}

void ClassifierFile::check(const SafetensorsFile& file, const std::string& where,
                           const std::string& prefix) const {
  const std::vector<std::int64_t> shape{layer_.settings().classes, layer_.settings().features};
  for (std::size_t which = 0; which < tensors(); ++which) {
    const auto name = prefix + tensor_name(which);
    const auto wanted = stored_type_of(which);
    const auto* const found = file.find(name);
    if (found == nullptr) {
      throw InvalidArgument(fmt::format("{} has no tensor \"{}\"", where, name));
    }
    if (found->shape == shape && found->type == wanted) continue;
    throw InvalidArgument(fmt::format("{}: \"{}\" is {}, and the classifier's {}", where, name,
                                      describe(found->type, found->shape),
                                      describe(wanted, shape)));
  }
}

void ClassifierFile::fill(const SafetensorsFile* file, const std::string& prefix,
                          std::int64_t updates) const {
  for (std::size_t which = 0; which < tensors(); ++which) {
    std::uint64_t at = 0;
    const auto* const entry = file != nullptr ? file->find(prefix + tensor_name(which)) : nullptr;
    move_pieces(which, To::owner, [&](std::span<std::byte> bytes) {
      auto part = *entry;
      part.offset += at;
      part.bytes = bytes.size();
      file->read(part, bytes);
      at += bytes.size();
    });
  }
  layer_.set_updates(updates);
  layer_.forget();
}

void ClassifierFile::save(const std::string& file) const {
  const auto& settings = layer_.settings();
  const std::filesystem::path path(file);
  // The wider type comes first in the file: states, where weights have 16 bits.
  std::vector<std::size_t> order(tensors());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (type_of(0) != settings.computed) {
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
  std::exception_ptr thrown;
  std::size_t begun = 0;
  if (layer_.group().rank() == 0) {
    SafetensorsContent content{.name = path.filename().string(),
                               .tensors = {},
                               .metadata = {{kUpdates, std::to_string(layer_.updates())}}};
    std::exception_ptr failed;
    for (const auto which : order) {
      // The others give their pieces, whatever becomes of the file.
      const auto stream = [&, which](const TakeBytes& take) {
        ++begun;
        move_pieces(which, To::first, [&](std::span<const std::byte> bytes) {
          try {
            if (!failed) take(bytes);
          } catch (...) {
            failed = std::current_exception();
          }
        });
        if (failed) std::rethrow_exception(failed);
      };
      content.tensors.push_back({.name = tensor_name(which),
                                 .type = stored_type_of(which),
                                 .shape = {settings.classes, settings.features},
                                 .data = {},
                                 .stream = stream});
    }
    try {
      const auto folder = path.parent_path().empty() ? "." : path.parent_path();
      const auto files = host_files();
      if (files->exists(path)) {
        throw InvalidArgument(fmt::format("{} is there already", path.string()));
      }
      SafetensorsWriter(content).write(*files, folder);
      files->sync_folder(folder);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  for (; begun < order.size(); ++begun) move_pieces(order[begun], To::first, [](auto) {});
  rethrow_everywhere(layer_.group(), thrown);
}

void ClassifierFile::load(const std::string& file) const {
  std::exception_ptr thrown;
  std::optional<SafetensorsFile> from;
  std::string updates;
  if (layer_.group().rank() == 0) {
    try {
      from.emplace(host_files(), file);
      check(*from, file, "");
      const auto found = from->metadata().find(kUpdates);
      updates = found == from->metadata().end() ? std::string() : found->second;
      const auto number = parse_number<std::int64_t>(updates);
      if (!number || *number < 0 || updates.size() > 18) {
        throw InvalidArgument(fmt::format("{}: \"{}\" updates", file, updates));
      }
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  rethrow_everywhere(layer_.group(), thrown);
  fill(from ? &*from : nullptr, "",
       parse_number<std::int64_t>(from_first(layer_.group(), updates)).value());
}

}  // namespace tutti
