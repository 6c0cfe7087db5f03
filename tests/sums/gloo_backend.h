#pragma once

// Gloo as the program's own backend of c10d.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace tutti::test {

/// Whether this build can make one.
bool has_gloo();
/// Collective: `file` does not exist before, and is the same on all workers.
c10::intrusive_ptr<c10d::Backend> gloo_backend(int rank, int size, const std::string& file);

}  // namespace tutti::test
