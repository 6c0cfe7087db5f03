#include "codec/sparse_message.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

constexpr std::int64_t kDenseArray = -1;

const float* array_of(std::span<const std::byte> message) {
  return reinterpret_cast<const float*>(message.data() + kSparseHeader);
}

void write_header(std::byte* message, std::int64_t entries) {
  std::memcpy(message, &entries, sizeof entries);
}

}  // namespace

std::int64_t max_entries(std::int64_t count, const EncodeContext& context) {
  if (context.message_format == MessageFormat::dense) return 0;
  if (context.message_format == MessageFormat::sparse) return count;
  // k + min(count, L·k) < count
  return (count - 1) / (1 + context.logical_workers);
}

bool travels_as_list(std::int64_t count, std::int64_t entries, const EncodeContext& context) {
  return context.message_format != MessageFormat::dense && entries <= max_entries(count, context);
}

std::size_t sparse_bytes(std::int64_t count, std::int64_t entries, const EncodeContext& context) {
  return kSparseHeader + (travels_as_list(count, entries, context)
                              ? static_cast<std::size_t>(entries) * kSparseEntry
                              : static_cast<std::size_t>(count) * sizeof(float));
}

SparseList begin_list(std::byte* message, std::int64_t entries) {
  write_header(message, entries);
  auto* const body = message + kSparseHeader;
  return {reinterpret_cast<std::uint32_t*>(body),
          reinterpret_cast<float*>(body + static_cast<std::size_t>(entries) * sizeof(float))};
}

float* begin_array(std::byte* message, std::int64_t count) {
  write_header(message, kDenseArray);
  auto* const values = reinterpret_cast<float*>(message + kSparseHeader);
  std::fill_n(values, count, -0.0f);
  return values;
}

std::optional<MessageList> list_of_sparse(std::span<const std::byte> message) {
  std::int64_t entries = 0;
  std::memcpy(&entries, message.data(), sizeof entries);
  if (entries == kDenseArray) return {};
  const auto* const body = message.data() + kSparseHeader;
  const auto count = static_cast<std::size_t>(entries);
  const std::span indices(reinterpret_cast<const std::uint32_t*>(body), count);
  return MessageList{indices, {reinterpret_cast<const float*>(body + indices.size_bytes()), count}};
}

void decode_sparse(std::span<const std::byte> message, std::int64_t begin, std::span<float> to) {
  const auto list = list_of_sparse(message);
  if (!list) {
    std::memcpy(to.data(), array_of(message) + begin, to.size_bytes());
    return;
  }
  std::fill(to.begin(), to.end(), -0.0f);
  const auto end = begin + static_cast<std::int64_t>(to.size());
  auto at = static_cast<std::size_t>(
      std::lower_bound(list->indices.begin(), list->indices.end(), begin) - list->indices.begin());
  for (; at < list->indices.size() && list->indices[at] < end; ++at) {
    to[static_cast<std::size_t>(list->indices[at] - begin)] = list->values[at];
  }
}

void clear_sent(std::span<const std::byte> message, std::span<float> values) {
  if (const auto list = list_of_sparse(message)) {
    for (std::size_t k = 0; k < list->indices.size(); ++k) {
      if (!is_absent(list->values[k])) values[list->indices[k]] = 0;
    }
    return;
  }
  const auto* const array = array_of(message);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_absent(array[i])) values[i] = 0;
  }
}

}  // namespace tutti
