#include "torch/pipeline/stage_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/group_state.h"

namespace tutti {
namespace {

constexpr std::size_t kAlignment = 64;
/// Of a worker's memory for what it sends, of which only what is used is touched.
constexpr std::size_t kRoom = std::size_t{1} << 34;
/// … and how much of it a worker is taken to need.
constexpr std::size_t kUsualRoom = std::size_t{1} << 22;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Elements in memory order: dense, or a copy that is.
torch::Tensor dense(const torch::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
}

/// Numbers first, the bytes of tensors behind them.
class Writer {
 public:
  void number(std::int64_t value) { numbers_.push_back(value); }
  template <class Value>
  void list(const std::vector<Value>& values) {
    number(static_cast<std::int64_t>(values.size()));
    for (const auto value : values) number(value);
  }
  void tensor(const torch::Tensor& tensor) {
    number(tensor.defined() ? 1 : 0);
    if (!tensor.defined()) return;
    tensors_.push_back(dense(tensor.detach()));
    const auto& laid_out = tensors_.back();
    number(static_cast<std::int64_t>(laid_out.scalar_type()));
    number(laid_out.dim());
    for (const auto size : laid_out.sizes()) number(size);
    for (const auto stride : laid_out.strides()) number(stride);
  }
  std::size_t size() const {
    auto bytes = aligned((numbers_.size() + 1) * sizeof(std::int64_t));
    for (const auto& tensor : tensors_) bytes += aligned(tensor.nbytes());
    return bytes;
  }
  void write(std::byte* to) const {
    const auto count = static_cast<std::int64_t>(numbers_.size());
    std::memcpy(to, &count, sizeof count);
    std::memcpy(to + sizeof count, numbers_.data(), numbers_.size() * sizeof(std::int64_t));
    auto* at = to + aligned((numbers_.size() + 1) * sizeof(std::int64_t));
    for (const auto& tensor : tensors_) {
      if (tensor.nbytes() > 0) std::memcpy(at, tensor.const_data_ptr(), tensor.nbytes());
      at += aligned(tensor.nbytes());
    }
  }

 private:
  std::vector<std::int64_t> numbers_;
  TensorList tensors_;
};

class Reader {
 public:
  explicit Reader(torch::Tensor bytes) : bytes_(std::move(bytes)) {
    const auto* const begin = static_cast<const std::byte*>(bytes_.const_data_ptr());
    std::int64_t count = 0;
    std::memcpy(&count, begin, sizeof count);
    TUTTI_CHECK(
        count >= 0 && (static_cast<std::size_t>(count) + 1) * sizeof count <= bytes_.nbytes(),
        "{} numbers in a message of {} bytes", count, bytes_.nbytes());
    numbers_.resize(static_cast<std::size_t>(count));
    std::memcpy(numbers_.data(), begin + sizeof count, numbers_.size() * sizeof count);
    at_ = aligned((numbers_.size() + 1) * sizeof count);
  }
  std::int64_t number() { return numbers_.at(next_++); }
  template <class Value>
  std::vector<Value> list() {
    std::vector<Value> values(static_cast<std::size_t>(number()));
    for (auto& value : values) value = static_cast<Value>(number());
    return values;
  }
  torch::Tensor tensor() {
    if (number() == 0) return {};
    const auto type = static_cast<torch::ScalarType>(number());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(number()));
    for (auto& size : sizes) size = number();
    auto strides = sizes;
    for (auto& stride : strides) stride = number();
    auto* const at = static_cast<std::byte*>(bytes_.data_ptr()) + at_;
    auto tensor = torch::from_blob(
        at, sizes, strides, [keep = bytes_](void*) {}, torch::TensorOptions(type));
    at_ += aligned(tensor.nbytes());
    TUTTI_CHECK(at_ <= bytes_.nbytes(), "a message of {} bytes ends inside a tensor",
                bytes_.nbytes());
    return tensor;
  }

 private:
  torch::Tensor bytes_;
  std::vector<std::int64_t> numbers_;
  std::size_t next_ = 0;
  std::size_t at_ = 0;
};

Writer written(const StageMessage& message) {
  Writer writer;
  writer.number(static_cast<std::int64_t>(message.state));
  std::int64_t weight = 0;
  std::memcpy(&weight, &message.weight, sizeof weight);
  writer.number(weight);
  writer.tensor(message.generator);
  writer.list(message.places);
  writer.list(message.need_gradient);
  writer.list(message.used);
  writer.number(static_cast<std::int64_t>(message.tensors.size()));
  for (const auto& tensor : message.tensors) writer.tensor(tensor);
  writer.number(static_cast<std::int64_t>(message.parameters.size()));
  for (const auto& [parameter, gradient] : message.parameters) {
    writer.number(parameter);
    writer.tensor(gradient);
  }
  return writer;
}

std::vector<std::pair<int, int>> pairs_of(int size, int workers) {
  std::vector<std::pair<int, int>> pairs;
  for (int first = 0; first + workers <= size; first += workers) {
    for (int w = 0; w + 1 < workers; ++w) pairs.emplace_back(first + w, first + w + 1);
    // Several stages of one worker: the last worker is before the first one.
    if (workers > 2) pairs.emplace_back(first, first + workers - 1);
  }
  return pairs;
}

}  // namespace

std::size_t packed_size(const StageMessage& message) { return written(message).size(); }
void pack(const StageMessage& message, std::byte* to) { written(message).write(to); }

StageMessage unpack(const torch::Tensor& bytes) {
  Reader reader(bytes);
  StageMessage message;
  message.state = static_cast<StageMessage::State>(reader.number());
  const auto weight = reader.number();
  std::memcpy(&message.weight, &weight, sizeof weight);
  message.generator = reader.tensor();
  message.places = reader.list<std::uint32_t>();
  message.need_gradient = reader.list<std::uint8_t>();
  message.used = reader.list<std::uint8_t>();
  message.tensors.resize(static_cast<std::size_t>(reader.number()));
  for (auto& tensor : message.tensors) tensor = reader.tensor();
  message.parameters.resize(static_cast<std::size_t>(reader.number()));
  for (auto& [parameter, gradient] : message.parameters) {
    parameter = reader.number();
    gradient = reader.tensor();
  }
  return message;
}

StageMessages::StageMessages(const Group& group, int workers, const std::string& name)
    : group_(group.split(0, fmt::format("pipelines of {}", name), {.lanes = 1})),
      memory_(group_.allocate(kRoom, fmt::format("messages of the pipelines of \"{}\"", name),
                              kUsualRoom)) {
  group_.connect(pairs_of(group_.size(), workers));
}

/// The first room that is free; beyond the end where there is none.
std::size_t StageMessages::place(std::size_t bytes) const {
  std::map<std::size_t, std::size_t> taken;
  for (const auto& sent : sent_) {
    if (sent.end > sent.begin) taken.emplace(sent.begin, sent.end);
  }
  std::size_t at = 0;
  for (const auto& [begin, end] : taken) {
    if (begin >= at + bytes) return at;
    at = end;
  }
  return at;
}

void StageMessages::forget_received() {
  while (!sent_.empty() && sent_.front().size.done() && sent_.front().body.done()) {
    sent_.front().size.wait();
    sent_.front().body.wait();
    sent_.pop_front();
  }
}

void StageMessages::send(int to, const StageMessage& message) {
  forget_received();
  const auto writer = written(message);
  auto& sent = sent_.emplace_back();
  // The size lies before the body.
  const auto bytes = kAlignment + writer.size();
  const auto at = place(bytes);
  std::byte* memory = nullptr;
  if (at + bytes <= memory_.bytes()) {
    sent.begin = at;
    sent.end = at + bytes;
    memory = memory_.data() + at;
  } else {
    sent.own = torch::empty({static_cast<std::int64_t>(bytes)}, torch::kUInt8);
    memory = static_cast<std::byte*>(sent.own.data_ptr());
  }
  const auto size = static_cast<std::int64_t>(writer.size());
  std::memcpy(memory, &size, sizeof size);
  writer.write(memory + kAlignment);
  sent.size =
      group_.start_send({memory, 1, DType::int64}, to, {.label = "size of a stage's tensors"});
  sent.body = group_.start_send({memory + kAlignment, size, DType::uint8}, to,
                                {.label = "a stage's tensors"});
  bytes_ += static_cast<std::uint64_t>(size);
  for (const auto& [parameter, gradient] : message.parameters)
    parameter_bytes_ += gradient.nbytes();
}

StageMessage StageMessages::receive(int from) {
  std::int64_t size = 0;
  group_.receive({&size, 1, DType::int64}, from, {.label = "size of a stage's tensors"});
  const auto body = torch::empty({size}, torch::kUInt8);
  group_.receive({body.data_ptr(), size, DType::uint8}, from, {.label = "a stage's tensors"});
  forget_received();
  return unpack(body);
}

void StageMessages::finish() {
  for (auto& sent : sent_) {
    sent.size.wait();
    sent.body.wait();
  }
  sent_.clear();
}

}  // namespace tutti
