#pragma once

// What stages of a pipeline give one another: the tensors that a shard's forward leaves, with the
// state of its random numbers, and the gradients that come back.
//
// What is given lies in memory that the workers of a host share. A message says where, the receiver
// copies it and counts, and the sender, which does not wait, uses the place again once it is
// counted. To another host, and where there is no room, the bytes follow in a second message.
//
// Threads: one. Failure: that of the group's messages.

#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sync/nodes/step_memory.h"
#include "tutti/group.h"
#include "tutti/tensors.h"

namespace tutti {

/// Tensors and which of the model's buffers, or parameters, each belongs to.
using NumberedTensors = std::vector<std::pair<std::int64_t, torch::Tensor>>;

struct StageMessage {
  enum class State : std::uint8_t {
    runs,
    nothing,  ///< the shard has no data, or its loss counts nothing
    failed,   ///< the worker, or one before it, has failed: nothing of the step counts
  };
  State state = State::runs;
  double weight = 0;                ///< of a gradient: the shard's
  torch::Tensor random_state = {};  ///< where the shard's random numbers stand
  TensorList tensors = {};          ///< each once
  /// Of an activation: which of them each input of the next layer is. One that is given twice stays
  /// one, so that its gradients are added up in the order of the whole model's backward.
  std::vector<std::uint32_t> places = {};
  std::vector<std::uint8_t> need_gradient = {};  ///< of an activation, by tensor
  /// By tensor of an activation, whether it shared memory with another one that came along.
  std::vector<std::uint8_t> apart = {};
  /// Of an activation: by parameter, whether a stage so far has read it.
  std::vector<std::uint8_t> used = {};
  /// Buffers that the shard of an activation has changed so far.
  NumberedTensors buffers = {};
  /// Of a gradient: those of parameters that an earlier stage has read too.
  NumberedTensors parameters = {};
};

/// A message as bytes, and back. Tensors begin at multiples of 64 bytes, laid out as they were
/// where that is dense. Unsupported for what is neither strided nor a sparse COO tensor.
std::size_t packed_size(const StageMessage& message);
void pack(const StageMessage& message, std::byte* to);
/// The tensors lie in `bytes`, which stay with them.
StageMessage unpack(const torch::Tensor& bytes);

/// The ways between the workers of all pipelines of a group.
class StageMessages {
 public:
  /// For pipelines of so many neighbouring ranks. Collective.
  StageMessages(StepMemory& memory, int workers, const std::string& name);

  const Group& group() const { return group_; }
  /// `what` it is, in errors: the same on both sides.
  void send(int to, const StageMessage& message, const std::string& what);
  StageMessage receive(int from, const std::string& what);
  /// Returns when all that was sent was received.
  void finish();
  /// The group has ended with an error that is known: nobody is told of what is under way.
  void abandon() noexcept;
  /// Bytes that were sent, and how many of them were gradients of parameters.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t parameter_bytes() const { return parameter_bytes_; }

 private:
  /// A message that the receiver may not have taken yet.
  struct Sent {
    int to = 0;
    std::array<std::int64_t, 2> head = {};  ///< bytes, and where they lie; −1: a message follows
    Work first;
    Work second;
    std::uint64_t number = 0;  ///< of those that the receiver counts
    std::size_t begin = 0;     ///< in memory_
    std::size_t end = 0;
    torch::Tensor own;  ///< elsewhere
  };
  /// How many messages of a member `by` has copied.
  std::atomic<std::uint64_t>& copied(int by, int of) const {
    return copied_.of(by)[static_cast<std::size_t>(of)];
  }
  bool is_here(int member) const;
  bool is_taken(Sent& sent) const;
  std::size_t place(std::size_t bytes) const;
  void forget_taken();

  Group group_;
  WorkerParts<Section<std::atomic<std::uint64_t>>> copied_;  ///< by the member that counts
  SharedMemory memory_;
  std::deque<Sent> sent_;
  std::vector<std::uint64_t> given_;  ///< by member: messages that it counts
  std::uint64_t bytes_ = 0;
  std::uint64_t parameter_bytes_ = 0;
};

}  // namespace tutti
