#pragma once

// libtorch's own Gloo, from C++: what a program on libtorch has today.

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace bench {

/// Gloo over the loopback interface; ranks meet through the file `store`. Collective.
c10::intrusive_ptr<c10d::Backend> make_gloo(const std::string& store, int rank, int size);

}  // namespace bench
