#include "torch/run/stored_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "torch/model/resolved.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::pair<torch::ScalarType, StoredType> kStoredTypes[] = {
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
  for (const auto& [type, stored] : kStoredTypes) {
    if (type == tensor.scalar_type()) return stored;
  }
  return {};
}

}  // namespace

torch::ScalarType scalar_type_of(StoredType stored) {
  const auto* const found = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                         [&](const auto& pair) { return pair.second == stored; });
  return found->first;  // every stored type is in the table
}

bool is_storable(const torch::Tensor& tensor) { return stored_type_of(tensor).has_value(); }

void require_storable(const std::string& what, const torch::Tensor& tensor) {
  if (is_storable(tensor)) return;
  throw Unsupported(
      fmt::format("{} is of type {}, which a checkpoint cannot hold: let it be of another type, or "
                  "a plain member of the module that is computed when it is made",
                  what, c10::toString(tensor.scalar_type())));
}

TensorView view_of(const std::string& name, const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kComplexDouble && is_resolved(tensor)) {
    return view_of(name, torch::view_as_real(tensor));  // the format has none
  }
  require_storable(fmt::format("\"{}\"", name), tensor);
  if (!is_resolved(tensor)) {
    throw Unsupported(fmt::format(
        "\"{}\" has torch's negative or conjugate bit, and its memory is not what its elements "
        "are: clone() makes one that a checkpoint can hold",
        name));
  }
  return {.name = name,
          .type = *stored_type_of(tensor),
          .shape = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .data = static_cast<std::byte*>(tensor.data_ptr())};
}

void append_views(std::vector<TensorView>& views, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) views.push_back(view_of(name, tensor));
}

torch::Tensor read_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  auto tensor =
      torch::empty(entry.shape, torch::dtype(scalar_type_of(entry.type)).device(torch::kCPU));
  file.read(entry, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  return tensor;
}

NamedTensors load_tensors(const Checkpoint& checkpoint, StateFile file) {
  const auto stored = checkpoint.file(name_of(file));
  NamedTensors tensors;
  for (const auto& entry : stored.tensors()) {
    tensors.emplace_back(entry.name, read_tensor(stored, entry));
  }
  return tensors;
}

std::vector<std::byte> packed(const NamedTensors& tensors) {
  if (tensors.empty()) return {};
  c10::Dict<std::string, torch::Tensor> all;
  for (const auto& [name, tensor] : tensors) all.insert(name, on_host(tensor));
  const auto bytes = torch::pickle_save(all);
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

NamedTensors unpacked(std::span<const std::byte> bytes) {
  NamedTensors tensors;
  if (bytes.empty()) return tensors;
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  const auto all = torch::pickle_load({begin, begin + bytes.size()}).toGenericDict();
  for (const auto& item : all) {
    tensors.emplace_back(item.key().toStringRef(), item.value().toTensor());
  }
  return tensors;
}

}  // namespace tutti
