#include "run/files/safetensors_format.h"

#include <array>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti {
namespace {

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

struct Row {
  StoredType type;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<Row, 16> kTypes = {{{StoredType::F64, "F64", 8},
                                         {StoredType::F32, "F32", 4},
                                         {StoredType::F16, "F16", 2},
                                         {StoredType::BF16, "BF16", 2},
                                         {StoredType::F8_E5M2, "F8_E5M2", 1},
                                         {StoredType::F8_E4M3, "F8_E4M3", 1},
                                         {StoredType::C64, "C64", 8},
                                         {StoredType::I64, "I64", 8},
                                         {StoredType::I32, "I32", 4},
                                         {StoredType::I16, "I16", 2},
                                         {StoredType::I8, "I8", 1},
                                         {StoredType::U64, "U64", 8},
                                         {StoredType::U32, "U32", 4},
                                         {StoredType::U16, "U16", 2},
                                         {StoredType::U8, "U8", 1},
                                         {StoredType::BOOL, "BOOL", 1}}};

const Row& row_of(StoredType type) { return kTypes.at(static_cast<std::size_t>(type)); }

}  // namespace

std::size_t size_of(StoredType type) noexcept { return row_of(type).bytes; }
std::string_view name_of(StoredType type) noexcept { return row_of(type).name; }

std::optional<StoredType> stored_type(std::string_view name) noexcept {
  for (const Row& row : kTypes)
    if (row.name == name) return row.type;
  return std::nullopt;
}

StoredType stored_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
      return StoredType::F32;
    case DType::float64:
      return StoredType::F64;
    case DType::float16:
      return StoredType::F16;
    case DType::bfloat16:
      return StoredType::BF16;
    case DType::int32:
      return StoredType::I32;
    case DType::int64:
      return StoredType::I64;
    case DType::uint8:
      return StoredType::U8;
    case DType::boolean:
      return StoredType::BOOL;
  }
  return StoredType::U8;
}

std::optional<std::uint64_t> bytes_of(StoredType type, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = size_of(type);
  for (const std::int64_t length : shape) {
    if (length < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes) ||
        bytes > kMaxBytes)
      return std::nullopt;
  }
  return bytes;
}

std::string describe(StoredType type, std::span<const std::int64_t> shape) {
  return fmt::format("{} [{}]", name_of(type), fmt::join(shape, ", "));
}

}  // namespace tutti
