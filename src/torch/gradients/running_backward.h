#pragma once

// The backward that the calling thread runs, as autograd has it.
//
// Threads: any. Failure: none.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace tutti {

/// Null outside of a backward. libtorch has no function that tells the task, but one that gives a
/// member of it.
inline torch::autograd::GraphTask* running_backward() {
  using torch::autograd::GraphTask;
  const auto* const member = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (member == nullptr) return nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr auto kOffset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  const auto* const task =
      reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(member) - kOffset);
  return const_cast<GraphTask*>(task);
}

}  // namespace tutti
