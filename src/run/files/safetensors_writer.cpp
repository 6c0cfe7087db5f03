#include "run/files/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void check(const SafetensorsContent& content) {
  const auto fail = [&](const TensorToWrite& tensor, const std::string& what) {
    throw InvalidArgument(fmt::format("{}: tensor {} {}", content.name, shown(tensor.name), what));
  };
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : content.tensors) {
    if (!names.insert(tensor.name).second) fail(tensor, "is given twice");
    if (tensor.name == kMetadataKey) fail(tensor, "bears a name that the format reserves");
    if (!is_utf8(tensor.name)) fail(tensor, "has a name that is not UTF-8");
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    if (bytes && tensor.stream) continue;
    if (!bytes || *bytes != tensor.data.size())
      fail(tensor, fmt::format("of {} was given {} bytes", describe(tensor.type, tensor.shape),
                               tensor.data.size()));
  }
  for (const auto& [key, text] : content.metadata)
    if (!is_utf8(key) || !is_utf8(text))
      throw InvalidArgument(fmt::format("{}: metadata {} is not UTF-8", content.name, shown(key)));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const SafetensorsContent& content) : content_(content) {
  check(content);
  for (const TensorToWrite& tensor : content.tensors) order_.push_back(&tensor);
  std::stable_sort(order_.begin(), order_.end(), [](const auto* a, const auto* b) {
    return size_of(a->type) > size_of(b->type);
  });
  std::string json = "{";
  if (!content.metadata.empty())
    json += fmt::format("\"{}\":{}", kMetadataKey, nlohmann::json(content.metadata).dump());
  std::uint64_t offset = 0;
  for (const TensorToWrite* tensor : order_) {
    const std::uint64_t end = offset + *bytes_of(tensor->type, tensor->shape);
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", nlohmann::json(tensor->name).dump(),
                        name_of(tensor->type), fmt::join(tensor->shape, ","), offset, end);
    offset = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes)
    throw InvalidArgument(fmt::format("{}: a header of {} bytes; the format's readers take {}",
                                      content.name, json.size(), kMaxHeaderBytes));
  for (int byte = 0; byte < 8; ++byte) header_ += static_cast<char>(json.size() >> (8 * byte));
  header_ += json;
  bytes_ = header_.size() + offset;
}

FileDigest SafetensorsWriter::write(Files& files, const std::filesystem::path& folder) const {
  HashedFile file(files, folder / content_.name);
  file.append(header_);
  for (const TensorToWrite* tensor : order_) {
    if (!tensor->stream) {
      file.append(tensor->data);
      continue;
    }
    std::uint64_t given = 0;
    tensor->stream([&](std::span<const std::byte> bytes) {
      file.append(bytes);
      given += bytes.size();
    });
    TUTTI_CHECK(given == *bytes_of(tensor->type, tensor->shape), "{}: {} bytes of tensor {}",
                content_.name, given, tensor->name);
  }
  return file.finish();
}

}  // namespace tutti
