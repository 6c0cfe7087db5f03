#include "comm/gather_bytes.h"

#include <cstdint>

namespace tutti {

std::vector<std::vector<std::byte>> gather_bytes(const Group& group,
                                                 std::span<const std::byte> mine,
                                                 const CollectiveOptions& options) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> counts(size);
  group.all_gather({&count, 1, DType::int64},
                   {counts.data(), static_cast<std::int64_t>(size), DType::int64}, options);
  std::int64_t total = 0;
  for (const auto part : counts) total += part;
  std::vector<std::byte> all(static_cast<std::size_t>(total));
  group.all_gather_variable({mine.data(), count, DType::uint8}, {all.data(), total, DType::uint8},
                            counts, options);
  std::vector<std::vector<std::byte>> parts;
  auto begin = all.cbegin();
  for (const auto part : counts) {
    parts.emplace_back(begin, begin + part);
    begin += part;
  }
  return parts;
}

std::vector<std::string> gather_texts(const Group& group, std::string_view mine,
                                      const CollectiveOptions& options) {
  std::vector<std::string> texts;
  for (const auto& bytes : gather_bytes(group, std::as_bytes(std::span(mine)), options)) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

}  // namespace tutti
