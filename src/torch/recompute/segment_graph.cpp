#include "torch/recompute/segment_graph.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

#include "tutti/error.h"

namespace tutti {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

torch::autograd::variable_list SegmentEntrance::apply(torch::autograd::variable_list&& gradients) {
  std::size_t k = 0;
  while (k + 1 < gradients.size() && !gradients[k].defined()) ++k;
  throw InvalidArgument(fmt::format(
      "recompute \"{}\": a backward comes to input {} of the segment by a tensor that the segment "
      "has not returned, but kept in a member or in what it captures: return it as a result, or "
      "keep its detach()",
      segment_, inputs_.at(k)));
}

SegmentStart::SegmentStart()
    : number_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

SegmentStart::Found SegmentStart::found(const std::vector<torch::Tensor>& outputs,
                                        const Node* entrance, const ThreadStarts& others,
                                        const std::string& name) const {
  Found found;
  const auto is_older = [&](const Node& node) {
    if (node.thread_id() == thread_) return node.sequence_nr() < number_;
    const auto other = others.find(node.thread_id());
    return other == others.end() || node.sequence_nr() < other->second;
  };
  std::vector<Node*> open;
  std::unordered_set<Node*> seen;
  const auto reach = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const auto& output : outputs) {
    // The node stays: the output holds it.
    if (output.defined() && !output.is_leaf()) {
      reach(torch::autograd::impl::gradient_edge(output).function.get());
    }
  }
  while (!open.empty()) {
    auto* const node = open.back();
    open.pop_back();
    if (node == entrance) continue;
    const auto device = node->device();
    if (!device.is_cpu() && std::ranges::find(found.devices, device) == found.devices.end()) {
      found.devices.push_back(device);
    }
    if (const auto* const leaf = dynamic_cast<AccumulateGrad*>(node)) {
      found.leaves.push_back(leaf->variable);
      continue;
    }
    if (is_older(*node)) {
      throw InvalidArgument(fmt::format(
          "recompute \"{}\": the segment uses a tensor that was computed outside of it ({}) and "
          "needs a gradient, but is none of its inputs: give it as an input, or detach() it",
          name, node->name()));
    }
    for (const auto& edge : node->next_edges()) reach(edge.function.get());
  }
  return found;
}

}  // namespace tutti
