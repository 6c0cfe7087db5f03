#include "torch/pipeline/stage_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "comm/group_state.h"
#include "memory/arena.h"
#include "torch/model/resolved.h"
#include "torch/model/tensor_at.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kAlignment = 64;
/// Of a worker's memory for what it sends, of which only what is used is touched.
constexpr std::size_t kRoom = std::size_t{1} << 34;
/// … and how much of it a worker is taken to need.
constexpr std::size_t kUsualRoom = std::size_t{1} << 22;

std::size_t aligned(std::size_t bytes) { return round_up(bytes, kAlignment); }

/// Elements in memory order: dense, or a copy that is.
torch::Tensor dense(const torch::Tensor& tensor) {
  const auto plain = resolved(tensor);
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

enum Kind : std::int64_t { kUndefined, kStrided, kSparse };

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
    if (!tensor.defined()) return number(kUndefined);
    if (tensor.is_sparse()) return sparse(tensor.detach());
    if (tensor.layout() != torch::kStrided || !tensor.is_cpu()) {
      throw Unsupported(fmt::format("a tensor {} on {} from one stage of a pipeline to another",
                                    c10::str(tensor.layout()), tensor.device().str()));
    }
    number(kStrided);
    tensors_.push_back(dense(tensor.detach()));
    const auto& laid_out = tensors_.back();
    number(static_cast<std::int64_t>(laid_out.scalar_type()));
    number(laid_out.dim());
    for (const auto size : laid_out.sizes()) number(size);
    for (const auto stride : laid_out.strides()) number(stride);
  }
  void sparse(const torch::Tensor& tensor) {
    number(kSparse);
    list(tensor.sizes().vec());
    number(tensor.is_coalesced() ? 1 : 0);
    this->tensor(tensor._indices());
    this->tensor(tensor._values());
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
    ByteReader all{{static_cast<const std::byte*>(bytes_.const_data_ptr()), bytes_.nbytes()}};
    const auto count = all.value<std::uint64_t>();
    TUTTI_CHECK(count <= all.left.size() / sizeof count, "{} numbers in a message of {} bytes",
                count, bytes_.nbytes());
    numbers_.left = all.bytes(count * sizeof count);
    at_ = aligned((count + 1) * sizeof count);
  }
  std::int64_t number() { return numbers_.value<std::int64_t>(); }
  template <class Value>
  std::vector<Value> list() {
    std::vector<Value> values(static_cast<std::size_t>(number()));
    for (auto& value : values) value = static_cast<Value>(number());
    return values;
  }
  torch::Tensor tensor() {
    const auto kind = number();
    if (kind == kUndefined) return {};
    if (kind == kSparse) return sparse();
    const auto type = static_cast<torch::ScalarType>(number());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(number()));
    for (auto& size : sizes) size = number();
    auto strides = sizes;
    for (auto& stride : strides) stride = number();
    auto* const at = static_cast<std::byte*>(bytes_.data_ptr()) + at_;
    auto tensor = tensor_at(at, sizes, strides, type, bytes_);
    at_ += aligned(tensor.nbytes());
    TUTTI_CHECK(at_ <= bytes_.nbytes(), "a message of {} bytes ends inside a tensor",
                bytes_.nbytes());
    return tensor;
  }

  torch::Tensor sparse() {
    const auto sizes = list<std::int64_t>();
    const bool is_coalesced = number() != 0;
    const auto indices = tensor();
    return at::_sparse_coo_tensor_unsafe(indices, tensor(), sizes, {}, is_coalesced);
  }

 private:
  torch::Tensor bytes_;
  ByteReader numbers_;
  std::size_t at_ = 0;
};

Writer written(const StageMessage& message) {
  Writer writer;
  writer.number(static_cast<std::int64_t>(message.state));
  std::int64_t weight = 0;
  std::memcpy(&weight, &message.weight, sizeof weight);
  writer.number(weight);
  writer.tensor(message.random_state);
  writer.list(message.places);
  writer.list(message.need_gradient);
  writer.list(message.apart);
  writer.list(message.used);
  writer.number(static_cast<std::int64_t>(message.tensors.size()));
  for (const auto& tensor : message.tensors) writer.tensor(tensor);
  for (const auto* const numbered : {&message.buffers, &message.parameters}) {
    writer.number(static_cast<std::int64_t>(numbered->size()));
    for (const auto& [index, tensor] : *numbered) {
      writer.number(index);
      writer.tensor(tensor);
    }
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
  message.random_state = reader.tensor();
  message.places = reader.list<std::uint32_t>();
  message.need_gradient = reader.list<std::uint8_t>();
  message.apart = reader.list<std::uint8_t>();
  message.used = reader.list<std::uint8_t>();
  message.tensors.resize(static_cast<std::size_t>(reader.number()));
  for (auto& tensor : message.tensors) tensor = reader.tensor();
  for (auto* const numbered : {&message.buffers, &message.parameters}) {
    numbered->resize(static_cast<std::size_t>(reader.number()));
    for (auto& [index, tensor] : *numbered) {
      index = reader.number();
      tensor = reader.tensor();
    }
  }
  return message;
}

StageMessages::StageMessages(StepMemory& memory, int workers, const std::string& name)
    : group_(memory.group().split(0, fmt::format("pipelines of {}", name), {.lanes = 1})),
      copied_(
          memory.add<Section<std::atomic<std::uint64_t>>>(static_cast<std::size_t>(group_.size()))),
      memory_(group_.allocate(kRoom, fmt::format("messages of the pipelines of \"{}\"", name),
                              kUsualRoom)),
      given_(static_cast<std::size_t>(group_.size())) {
  group_.connect(pairs_of(group_.size(), workers));
}

bool StageMessages::is_here(int member) const {
  const auto& state = *group_.state();
  return state.host_of(member) == state.host_of(group_.rank());
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

bool StageMessages::is_taken(Sent& sent) const {
  if (!sent.first.done()) return false;
  if (sent.number == 0) return sent.second.done();
  return copied(sent.to, group_.rank()).load(std::memory_order_acquire) >= sent.number;
}

void StageMessages::forget_taken() {
  while (!sent_.empty() && is_taken(sent_.front())) {
    sent_.front().first.wait();
    sent_.front().second.wait();
    sent_.pop_front();
  }
}

void StageMessages::send(int to, const StageMessage& message, const std::string& what) {
  forget_taken();
  const auto writer = written(message);
  const auto bytes = writer.size();
  const auto at = place(bytes);
  auto& sent = sent_.emplace_back();
  sent.to = to;
  sent.head = {static_cast<std::int64_t>(bytes), -1};
  std::byte* memory = nullptr;
  if (at + bytes <= memory_.bytes()) {
    sent.begin = at;
    sent.end = at + bytes;
    memory = memory_.data() + at;
    if (is_here(to)) {
      sent.head[1] = static_cast<std::int64_t>(at);
      sent.number = ++given_[static_cast<std::size_t>(to)];
    }
  } else {
    sent.own = torch::empty({sent.head[0]}, torch::kUInt8);
    memory = static_cast<std::byte*>(sent.own.data_ptr());
  }
  writer.write(memory);
  sent.first = group_.start().send({sent.head.data(), 2, DType::int64}, to, {.label = what});
  if (sent.number == 0) {
    sent.second = group_.start().send({memory, sent.head[0], DType::uint8}, to, {.label = what});
  }
  bytes_ += bytes;
  for (const auto& [parameter, gradient] : message.parameters) {
    parameter_bytes_ += gradient.is_sparse()
                            ? gradient._indices().nbytes() + gradient._values().nbytes()
                            : gradient.nbytes();
  }
}

StageMessage StageMessages::receive(int from, const std::string& what) {
  std::array<std::int64_t, 2> head = {};
  group_.receive({head.data(), 2, DType::int64}, from, {.label = what});
  const auto body = torch::empty({head[0]}, torch::kUInt8);
  if (head[1] < 0) {
    group_.receive({body.data_ptr(), head[0], DType::uint8}, from, {.label = what});
  } else {
    std::memcpy(body.data_ptr(), memory_.block(from) + head[1], body.nbytes());
    copied(group_.rank(), from).fetch_add(1, std::memory_order_release);
  }
  forget_taken();
  return unpack(body);
}

void StageMessages::abandon() noexcept {
  for (auto& sent : sent_) {
    for (auto* const work : {&sent.first, &sent.second}) {
      try {
        work->wait();
      } catch (const Error&) {
        // The group's own error, which the caller has.
      }
    }
  }
  sent_.clear();
}

void StageMessages::finish() {
  for (auto& sent : sent_) {
    sent.first.wait();
    sent.second.wait();
  }
}

}  // namespace tutti
