#pragma once

// How a node of autograd's graph that is Tutti's own is made.
//
// Threads: any. Failure: that of the node's constructor.

#include <torch/torch.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace tutti {

/// libtorch's pointers to nodes count in the node, and beside it in versions before.
template <class Node, class... Arguments>
auto make_graph_node(Arguments&&... arguments) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace tutti
