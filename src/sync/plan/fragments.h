#pragma once

// How a row of parameters is divided into fragments, each of which is sent at another time: the
// bytes of the largest one bound what a step sends.
//
// Pure function.

#include <cstddef>
#include <span>
#include <vector>

namespace tutti {

/// The numbers of neighbours in each of `fragments` groups, at least 1 each, so that the largest
/// group has as few bytes as there can be. There are `fragments`, at least 1, or more of `bytes`.
std::vector<std::size_t> fragment_counts(std::span<const std::size_t> bytes, std::size_t fragments);

}  // namespace tutti
