#pragma once

// What writing and reading safetensors share. The format (github.com/huggingface/safetensors,
// README "Format"): eight bytes of header length, little-endian; a JSON header, padded with blanks
// to a multiple of eight; the tensors' bytes, row-major, little-endian, without a gap.
//
// Threads: pure functions. Failure: none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/dtype.h"

namespace tutti {

/// Element types that Tutti reads and writes, by the names the format gives them.
enum class StoredType : std::uint8_t {
  F64,
  F32,
  F16,
  BF16,
  F8_E5M2,
  F8_E4M3,
  C64,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  BOOL
};

/// Bytes of one element.
std::size_t size_of(StoredType type) noexcept;
/// "F32", "BF16", …
std::string_view name_of(StoredType type) noexcept;
/// The type with that name; empty where it is not supported.
std::optional<StoredType> stored_type(std::string_view name) noexcept;
/// The type as which elements of the core are stored.
StoredType stored_type(DType dtype) noexcept;

/// Bytes of a tensor; nothing if a dimension is negative or their product exceeds 63 bits.
std::optional<std::uint64_t> bytes_of(StoredType type, std::span<const std::int64_t> shape);
/// "F32 [2, 3]"
std::string describe(StoredType type, std::span<const std::int64_t> shape);

/// Longest JSON header that any reader takes.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// The one member of the header that is no tensor: texts for the readers of the file.
inline constexpr const char* kMetadataKey = "__metadata__";

}  // namespace tutti
