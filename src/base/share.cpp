#include "tutti/share.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/error.h"

namespace tutti {

std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, std::int64_t part,
                                               std::int64_t parts) {
  if (total < 0 || part < 0 || part >= parts) {
    throw InvalidArgument(fmt::format("share_of: part {} of {} of {} items", part, parts, total));
  }
  const std::int64_t base = total / parts;
  const std::int64_t longer = total % parts;
  const std::int64_t first = part * base + std::min(part, longer);
  return {first, first + base + (part < longer ? 1 : 0)};
}

}  // namespace tutti
