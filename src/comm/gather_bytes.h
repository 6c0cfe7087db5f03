#pragma once

// What each worker has to say, of any length, for all.
//
// Threads: one. Failure: that of the group's collectives.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/group.h"

namespace tutti {

/// Part r is what rank r gave. Collective.
std::vector<std::vector<std::byte>> gather_bytes(const Group& group,
                                                 std::span<const std::byte> mine,
                                                 const CollectiveOptions& options);
/// The same of texts. Collective.
std::vector<std::string> gather_texts(const Group& group, std::string_view mine,
                                      const CollectiveOptions& options);

}  // namespace tutti
