#pragma once

// A message that contains some of its values: as a list (indices, ascending, then values)
// or as a dense array with −0.0 for the others. x + (−0.0) = x bit for bit, so that it does not
// matter for a sum which of the two was sent.
//
//   8 bytes: number of entries, or −1 for a dense array │ uint32 indices │ float32 values
//   8 bytes                                             │ float32 values
//
// Threads: pure functions. Failure: none.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tutti/codec.h"

namespace tutti {

inline constexpr std::size_t kSparseHeader = 8;
inline constexpr std::size_t kSparseEntry = sizeof(std::uint32_t) + sizeof(float);

/// Most entries of a message of `count` values that travels as a list. By size: a list and its
/// share of the sum's list, at most Σ entries long, are fewer bytes than two dense arrays.
std::int64_t max_entries(std::int64_t count, const EncodeContext& context);

/// Whether a message with `entries` entries travels as a list.
bool travels_as_list(std::int64_t count, std::int64_t entries, const EncodeContext& context);
/// Bytes of a message that is a list of `entries` entries.
std::size_t sparse_bytes(std::int64_t count, std::int64_t entries, const EncodeContext& context);

/// Whether the value is −0.0, which stands for a value that was not sent.
inline bool is_absent(float value) {
  return std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(-0.0f);
}

/// begin_list() writes the header of a list of `entries` and returns where its parts lie.
struct SparseList {
  std::uint32_t* indices;
  float* values;
};
SparseList begin_list(std::byte* message, std::int64_t entries);
/// Begins a dense array of `count` values: writes the header, and −0.0 as every value.
float* begin_array(std::byte* message, std::int64_t count);

/// See Codec.
std::optional<MessageList> list_of_sparse(std::span<const std::byte> message);
void decode_sparse(std::span<const std::byte> message, std::int64_t begin, std::span<float> to);
/// values[i] = 0 where something was sent of it. A value of −0.0 counts as absent however it
/// travels, so that the message_format decides no bit.
void clear_sent(std::span<const std::byte> message, std::span<float> values);

}  // namespace tutti
