#pragma once

// What is wrong with a call can be said before anything is sent: shapes, types, roots, overlaps.
//
// Threads: pure functions. Failure: InvalidArgument naming the operation, its label and what is
// wrong.

#include "comm/local/operation.h"

namespace tutti {

/// Checks `operation` as a call of member `rank` of `size`.
void check_operation(const Operation& operation, int rank, int size);

}  // namespace tutti
