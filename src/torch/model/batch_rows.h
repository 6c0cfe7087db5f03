#pragma once

// How many rows the loss that is run backward is made of, as its graph tells.
//
// Threads: the one that runs backward. Failure: none.

#include <cstdint>
#include <optional>

namespace tutti {

/// The first dimension of what the running backward's loss reduces, as mean() or one of torch's
/// losses does. Of a sum of losses, of the first one that is a mean. Null where none is seen, or
/// the loss is multiplied or divided by anything: then its program weighs it. Costs a look at each
/// edge of the graph.
std::optional<std::int64_t> batch_rows();

}  // namespace tutti
