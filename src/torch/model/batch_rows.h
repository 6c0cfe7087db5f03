#pragma once

// How many rows the loss that is run backward is made of, as its graph tells.
//
// Threads: the one that runs backward. Failure: none.

#include <cstdint>
#include <optional>

namespace tutti {

/// The first dimension of what the running backward's loss reduces, as mean() or one of torch's
/// losses does: of a sum, of what was computed first of torch's losses that are means, or else of
/// mean()s. Null where none is seen, as where the one loss is multiplied by a number: then its
/// program weighs it. Costs a look at each edge of the graph.
std::optional<std::int64_t> batch_rows();

}  // namespace tutti
