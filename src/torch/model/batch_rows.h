#pragma once

// How many rows the batch has whose loss is run backward, as its graph tells: the first dimension
// of what a parameter's layer returned.
//
// Threads: the one that runs backward. Failure: none.

#include <cstdint>
#include <optional>

#include "torch/model/parameter_roles.h"

namespace tutti {

struct BatchRows {
  std::size_t parameter;  ///< that has shown them
  std::int64_t rows;
};

/// Rows of the running backward's batch; null where none of the first parameters shows any. A
/// parameter does where an operation that takes it returns at least two dimensions. A matrix with
/// as many elements as the parameter is passed over: a transposed one is no batch. Costs a look at
/// each node of the graph.
std::optional<BatchRows> batch_rows(const NamedTensors& parameters);

}  // namespace tutti
