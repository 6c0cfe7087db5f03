#include "run/files/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "run/files/safetensors_format.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
/// The outermost object, a tensor, its shape; more dimensions than any framework offers.
constexpr JsonLimits kHeaderLimits = {.depth = 3, .array = 64};

std::string read_header(const Files& files, const File& file) {
  const std::string where = file.path.string();
  const std::uint64_t size = files.size(file);
  if (size < kLengthBytes)
    throw Corrupt(fmt::format("{} has {} bytes, too few for safetensors", where, size));
  std::array<std::byte, kLengthBytes> raw{};
  read_all(files, file, 0, raw);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(raw[i]) << (8 * i);
  if (length > kMaxHeaderBytes)
    throw Corrupt(fmt::format("{} claims a header of {} bytes; at most {} are taken", where, length,
                              kMaxHeaderBytes));
  if (length > size - kLengthBytes)
    throw Corrupt(fmt::format("{} is cut in its header: it has {} of {} bytes", where,
                              size - kLengthBytes, length));
  std::string header(length, '\0');
  read_all(files, file, kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{'))
    throw Corrupt(fmt::format("the header of {} does not begin with '{{'", where));
  return header;
}

/// A whole number that is not negative and fits 63 bits.
std::uint64_t number(const json& value, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Corrupt(fmt::format("{} has {} that is no size: {}", where, what, shown(value.dump())));
  return value.get<std::uint64_t>();
}

/// One member of the header. The offset counts from the first byte of data.
TensorEntry parse_tensor(const std::string& name, const json& value, const std::string& where) {
  if (!value.is_object()) throw Corrupt(fmt::format("{} is not described by an object", where));
  const auto member = [&](const char* key, json::value_t type) -> const json& {
    const auto at = value.find(key);
    if (at == value.end()) throw Corrupt(fmt::format("{} has no {}", where, key));
    if (at->type() != type) throw Corrupt(fmt::format("{} has a {} of wrong kind", where, key));
    return *at;
  };
  TensorEntry tensor{.name = name};
  const auto& type_name = member("dtype", json::value_t::string).get_ref<const std::string&>();
  const auto type = stored_type(type_name);
  if (!type)
    throw Unsupported(
        fmt::format("{} has dtype {}, which is not offered", where, shown(type_name)));
  tensor.type = *type;
  for (const json& length : member("shape", json::value_t::array))
    tensor.shape.push_back(static_cast<std::int64_t>(number(length, where, "a length")));
  const json& offsets = member("data_offsets", json::value_t::array);
  if (offsets.size() != 2)
    throw Corrupt(fmt::format("{} has {} data_offsets instead of 2", where, offsets.size()));
  if (value.size() != 3)
    throw Corrupt(fmt::format("{} has members besides dtype, shape and data_offsets", where));
  tensor.offset = number(offsets[0], where, "an offset");
  const std::uint64_t end = number(offsets[1], where, "an offset");
  if (end < tensor.offset)
    throw Corrupt(fmt::format("{} ends at {}, before it begins at {}", where, end, tensor.offset));
  tensor.bytes = end - tensor.offset;
  const auto needed = bytes_of(tensor.type, tensor.shape);
  const std::string kind = describe(tensor.type, tensor.shape);
  if (!needed) throw Corrupt(fmt::format("{} is too large: {}", where, kind));
  if (*needed != tensor.bytes)
    throw Corrupt(
        fmt::format("{} of {} has {} bytes instead of {}", where, kind, tensor.bytes, *needed));
  return tensor;
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& where) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) throw Corrupt(where + " has __metadata__ that is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      throw Corrupt(fmt::format("{} has __metadata__ {} that is no text", where, shown(key)));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// Tensors cover the data exactly, each byte once.
void check_cover(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes,
                 const std::string& where) {
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.offset < end)
      throw Corrupt(
          fmt::format("{}: tensor {} overlaps the one before it", where, shown(tensor.name)));
    if (tensor.offset > end)
      throw Corrupt(fmt::format("{}: {} bytes before tensor {} belong to none", where,
                                tensor.offset - end, shown(tensor.name)));
    end = tensor.offset + tensor.bytes;
  }
  if (data_bytes < end)
    throw Corrupt(fmt::format("{} is cut: it has {} of {} bytes of data", where, data_bytes, end));
  if (data_bytes > end)
    throw Corrupt(fmt::format("{} has {} bytes after its last tensor", where, data_bytes - end));
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::shared_ptr<const Files> files,
                                 const std::filesystem::path& path)
    : files_(std::move(files)), file_(files_->open(path)) {
  const std::string header = read_header(*files_, file_);
  const std::string where = path.string();
  each_member(header, "the header of " + where, kHeaderLimits,
              [&](const std::string& name, const json& value) {
                if (name == kMetadataKey)
                  metadata_ = parse_metadata(value, where);
                else
                  tensors_.push_back(
                      parse_tensor(name, value, fmt::format("{}: tensor {}", where, shown(name))));
              });
  // Empty tensors come before what begins at the same byte.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  });
  const std::uint64_t data_begin = kLengthBytes + header.size();
  check_cover(tensors_, files_->size(file_) - data_begin, where);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].offset += data_begin;
    index_.emplace(tensors_[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const noexcept {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

void SafetensorsFile::read(const TensorEntry& tensor, std::span<std::byte> into) const {
  if (into.size() != tensor.bytes)
    throw InvalidArgument(fmt::format(
        "{}: tensor {} of {} has {} bytes, but room for {} was given", file_.path.string(),
        shown(tensor.name), describe(tensor.type, tensor.shape), tensor.bytes, into.size()));
  read_all(*files_, file_, tensor.offset, into);
}

}  // namespace tutti
