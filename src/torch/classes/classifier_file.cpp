#include <cstddef>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "base/number.h"
#include "comm/gather_bytes.h"
#include "kernels/hash.h"
#include "run/files/safetensors_reader.h"
#include "run/files/safetensors_writer.h"
#include "torch/classes/classifier.h"
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

torch::Tensor& Classifier::tensor(std::size_t which, std::int64_t piece) {
  auto& own = pieces_[static_cast<std::size_t>(piece - first_piece_)];
  return which == 0 ? own.weights() : own.states()[which - 1];
}

void Classifier::gather_pieces(std::size_t which, const TakeBytes& take) {
  const auto type = type_of(which);
  torch::Tensor whole;
  for (int member = 0; member < group_.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(member, group_.size());
    for (auto piece = first; piece < last; ++piece) {
      const auto [begin, end] = settings_.classes_of(piece);
      if (member == 0) {
        if (group_.rank() == 0) take(bytes_of(tensor(which, piece)));
        continue;
      }
      std::vector<std::int64_t> counts(static_cast<std::size_t>(group_.size()));
      auto& count = counts[static_cast<std::size_t>(member)];
      count = (end - begin) * settings_.features;
      auto in = torch::empty({0}, type);
      if (group_.rank() == member) in = tensor(which, piece);
      if (group_.rank() == 0) whole = torch::empty({count}, type);
      group_.gather_variable(view_of(in),
                             group_.rank() == 0 ? view_of(whole) : View{nullptr, 0, dtype_of(in)},
                             counts, 0, {.label = "piece"});
      if (group_.rank() == 0) take(bytes_of(whole));
    }
  }
}

void Classifier::scatter_pieces(std::size_t which,
                                const std::function<void(std::span<std::byte>)>& fill) {
  const auto type = type_of(which);
  torch::Tensor whole;
  for (int member = 0; member < group_.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(member, group_.size());
    for (auto piece = first; piece < last; ++piece) {
      const auto [begin, end] = settings_.classes_of(piece);
      if (member == 0) {
        if (group_.rank() == 0) fill(bytes_of(tensor(which, piece)));
        continue;
      }
      std::vector<std::int64_t> counts(static_cast<std::size_t>(group_.size()));
      auto& count = counts[static_cast<std::size_t>(member)];
      count = (end - begin) * settings_.features;
      auto out = torch::empty({0}, type);
      if (group_.rank() == member) out = tensor(which, piece);
      if (group_.rank() == 0) {
        whole = torch::empty({count}, type);
        fill(bytes_of(whole));
      }
      group_.scatter_variable(
          group_.rank() == 0 ? ConstView(view_of(whole)) : View{nullptr, 0, dtype_of(out)},
          view_of(out), counts, 0, {.label = "piece"});
    }
  }
}

std::string Classifier::tensor_name(std::size_t which) const {
  return which == 0 ? "weight" : settings_.rule.states[which - 1].name;
}

std::string Classifier::sha256() {
  Sha256 hash;
  const auto name = tensor_name(0);
  hash.update(name.data(), name.size());
  add_to(hash, 0);
  return from_first(group_, hash.hex());
}

std::string Classifier::digest(std::size_t which) {
  Sha256 hash;
  add_to(hash, which);
  return from_first(group_, hash.hex());
}

void Classifier::add_to(Sha256& hash, std::size_t which) {
  gather_pieces(which,
                [&](std::span<const std::byte> bytes) { hash.update(bytes.data(), bytes.size()); });
}

torch::Tensor Classifier::whole(std::size_t which) {
  torch::Tensor all;
  std::size_t at = 0;
  if (group_.rank() == 0) {
    all = torch::empty({settings_.classes, settings_.features}, type_of(which));
  }
  gather_pieces(which, [&](std::span<const std::byte> bytes) {
    std::ranges::copy(bytes, bytes_of(all).begin() + static_cast<std::ptrdiff_t>(at));
    at += bytes.size();
  });
  return all;
}

void Classifier::check(const SafetensorsFile& file, const std::string& where,
                       const std::string& prefix) const {
  const std::vector<std::int64_t> shape{settings_.classes, settings_.features};
  for (std::size_t which = 0; which < tensors(); ++which) {
    const auto name = prefix + tensor_name(which);
    const auto wanted = stored_type(dtype_of(torch::empty({0}, type_of(which))));
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

void Classifier::fill(const SafetensorsFile* file, const std::string& prefix,
                      std::int64_t updates) {
  for (std::size_t which = 0; which < tensors(); ++which) {
    std::uint64_t at = 0;
    const auto* const entry = file != nullptr ? file->find(prefix + tensor_name(which)) : nullptr;
    scatter_pieces(which, [&](std::span<std::byte> bytes) {
      auto part = *entry;
      part.offset += at;
      part.bytes = bytes.size();
      file->read(part, bytes);
      at += bytes.size();
    });
  }
  updates_ = updates;
  calls_ = 0;
  training_calls_ = 0;
  forget();
}

void Classifier::save(const std::string& file) {
  const std::filesystem::path path(file);
  SafetensorsContent content{.name = path.filename().string(),
                             .tensors = {},
                             .metadata = {{kUpdates, std::to_string(updates_)}}};
  // The wider type comes first in the file: states, where weights have 16 bits.
  std::vector<std::size_t> order;
  for (std::size_t which = 0; which <= settings_.rule.states.size(); ++which)
    order.push_back(which);
  if (settings_.options.dtype != settings_.computed) {
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
  for (const auto which : order) {
    content.tensors.push_back(
        {.name = tensor_name(which),
         .type = stored_type(dtype_of(torch::empty({0}, type_of(which)))),
         .shape = {settings_.classes, settings_.features},
         .data = {},
         .stream = [this, which](const TakeBytes& take) { gather_pieces(which, take); }});
  }
  std::exception_ptr thrown;
  std::size_t begun = 0;
  const auto nowhere = [](std::span<const std::byte>) {};
  if (group_.rank() == 0) {
    // The others give their pieces, whatever becomes of the file.
    std::exception_ptr failed;
    for (auto& tensor : content.tensors) {
      tensor.stream = [&, stream = tensor.stream](const TakeBytes& take) {
        ++begun;
        stream([&](std::span<const std::byte> bytes) {
          try {
            if (!failed) take(bytes);
          } catch (...) {
            failed = std::current_exception();
          }
        });
        if (failed) std::rethrow_exception(failed);
      };
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
  for (; begun < order.size(); ++begun) gather_pieces(order[begun], nowhere);
  rethrow_everywhere(group_, thrown);
}

void Classifier::load(const std::string& file) {
  std::exception_ptr thrown;
  std::optional<SafetensorsFile> from;
  std::string updates;
  if (group_.rank() == 0) {
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
  rethrow_everywhere(group_, thrown);
  fill(from ? &*from : nullptr, "",
       parse_number<std::int64_t>(from_first(group_, updates)).value());
}

}  // namespace tutti
