#include "torch/gradients/device_gradients.h"

#include <cstring>
#include <exception>
#include <limits>

#include "kernels/fold.h"
#include "torch/model/real_numbers.h"
#include "torch/model/resolved.h"
#include "torch/model/tensor_at.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

const torch::Tensor& tensor_of(const void* gradient) {
  return *static_cast<const torch::Tensor*>(gradient);
}

/// In that order of elements, whatever the operation that makes it would choose.
torch::Tensor copy_of(const torch::Tensor& gradient, torch::ScalarType type) {
  auto copy =
      torch::empty_strided(gradient.sizes(), gradient.strides(), gradient.options().dtype(type));
  copy.copy_(gradient);
  return copy;
}

}  // namespace

DeviceGradients::DeviceGradients(HostCopies& host, StepExchange& exchange, DeviceNumbers* numbers)
    : host_(host),
      exchange_(exchange),
      numbers_(numbers),
      pinned_(host, exchange),
      nodes_(exchange.plan().parameters().size()) {
  exchange.leaves().fold_in(this, [this] { settle(); });
}

DeviceGradients::~DeviceGradients() {
  exchange_.leaves().fold_in(nullptr);
  try {
    host_.settle();
  } catch (const std::exception&) {
    return;  // the copies' own end says so
  }
}

/// Sums of the last step leave from where nodes come to.
void DeviceGradients::open() { host_.device().comes_after(host_.sums().mark()); }

void DeviceGradients::add(std::size_t parameter, const torch::Tensor& gradient, bool last,
                          bool may_stay) {
  auto& leaves = exchange_.leaves();
  host_.device().run([&] {
    if (auto& look = leaves.first_look(); look.looks_at_gradients()) {
      const auto values = on_host(gradient);
      look.note(exchange_.nodes().leaves().leaves(), parameter, values.const_data_ptr(),
                values.nbytes());
    }
    leaves.fold(parameter, &gradient, last, may_stay);
  });
  // Without values a bucket waits for nothing.
  if (last && !exchange_.holds_values()) leaves.arrived(parameter);
  while (!coming_.empty() && host_.device().has_passed(coming_.front().mark)) first_arrives();
}

void DeviceGradients::settle() {
  while (!coming_.empty()) first_arrives();
}

void DeviceGradients::first_arrives() {
  host_.device().wait(coming_.front().mark,
                      [&] { return "the gradient of " + host_.label(coming_.front().parameter); });
  const auto first = std::move(coming_.front());
  coming_.pop_front();
  if (first.by.defined()) {
    const auto& entry = exchange_.plan().parameters()[first.parameter];
    scale_into(first.to, entry.node_type, first.by.const_data_ptr(), dtype_of(first.by),
               entry.node_count(), 1);
  }
  if (first.completes) exchange_.leaves().arrived(first.parameter);
}

void DeviceGradients::drop() noexcept {
  for (auto& one : coming_) dropped_.push_back(std::move(one));
  coming_.clear();
  largest_.clear();
  for (auto& nodes : nodes_) nodes.clear();
}

std::size_t DeviceGradients::bytes_held() const {
  std::size_t bytes = 0;
  for (const auto& nodes : nodes_) {
    for (const auto& node : nodes) bytes += node.second.defined() ? node.second.nbytes() : 0;
  }
  return bytes;
}

/// Their places are another step's from now on.
void DeviceGradients::reset() {
  drop();
  for (const auto& one : dropped_) {
    host_.device().wait(one.mark, [] { return "gradients of a step that was dropped"; });
  }
  dropped_.clear();
}

torch::Tensor& DeviceGradients::widened(torch::Tensor& node, std::size_t parameter) const {
  const auto type = scalar_type_of(exchange_.plan().parameters()[parameter].node_type);
  if (node.scalar_type() != type) node = copy_of(node, type);
  host_.device().current_stream_uses(node);
  return node;
}

/// A gradient with a weight of 1 keeps its width until something is added to it.
void DeviceGradients::set(std::size_t parameter, std::uint8_t slot, const void* gradient,
                          double weight, bool may_stay) {
  const auto& value = tensor_of(gradient);
  auto& node = nodes_[parameter][slot];
  if (weight == 1) {
    node = may_stay ? value : copy_of(value, value.scalar_type());
  } else {
    node = copy_of(value, scalar_type_of(exchange_.plan().parameters()[parameter].node_type));
    node.mul_(weight);
  }
  note_magnitude(parameter, node);
}

void DeviceGradients::add(std::size_t parameter, std::uint8_t slot, const void* gradient,
                          double weight) {
  auto& node = widened(nodes_[parameter][slot], parameter);
  auto value = tensor_of(gradient);
  if (weight != 1) {
    value = copy_of(value, node.scalar_type());
    value.mul_(weight);
  }
  node.add_(value);
  note_magnitude(parameter, value);
}

void DeviceGradients::add_node(std::size_t parameter, std::uint8_t left, std::uint8_t right) {
  auto& nodes = nodes_[parameter];
  host_.device().run([&] {
    host_.device().current_stream_uses(nodes[right]);
    widened(nodes[left], parameter).add_(nodes[right]);
  });
  nodes.erase(right);
}

bool DeviceGradients::holds(std::size_t parameter, std::uint8_t slot) const {
  return exchange_.holds_values() && nodes_[parameter].contains(slot);
}

bool DeviceGradients::leave(std::size_t parameter, std::uint8_t slot, std::byte* to,
                            bool completes) {
  const auto left = nodes_[parameter].extract(slot);
  const auto& node = left.mapped();
  const auto& entry = exchange_.plan().parameters()[parameter];
  const bool is_straight = dtype_of(node) == entry.node_type && pinned_.has(slot);
  auto& device = host_.device();
  auto by = is_straight ? torch::Tensor() : device.host_like(node);
  device.copy(node, is_straight ? tensor_at(to, node, node.scalar_type()) : by);
  coming_.push_back({parameter, completes, device.mark(), std::move(by), to});
  return is_straight;
}

/// NaN is above all else in it.
void DeviceGradients::note_magnitude(std::size_t parameter, const torch::Tensor& added) {
  if (numbers_ == nullptr || added.numel() == 0) return;
  largest_[parameter] =
      numbers_->add(torch::linalg_vector_norm(added, std::numeric_limits<double>::infinity()));
}

void DeviceGradients::give(std::size_t parameter, const torch::Tensor& to) {
  auto& device = host_.sums();
  if (!nodes_[parameter].empty()) {
    const auto node = nodes_[parameter].begin()->second;
    nodes_[parameter].clear();
    device.queue([&] { as_reals(to.detach()).copy_(node); }, {to, node});
    return;
  }
  if (auto* const at = pinned_.result(parameter)) {
    return device.copy(tensor_at(at, to, to.scalar_type()), to);
  }
  const auto& copy = host_.of_parameter(parameter);
  if (copy.nbytes() > 0) {
    std::memcpy(copy.data_ptr(), exchange_.nodes().result(parameter), copy.nbytes());
  }
  device.copy(copy, to);
}

void DeviceGradients::hand_over() { host_.sums().current_stream_waits(host_.sums().mark()); }

}  // namespace tutti
