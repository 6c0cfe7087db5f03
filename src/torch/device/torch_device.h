#pragma once

// A device of libtorch's other than the CPU, by what c10 and ATen have for all of them: copies
// between its memory and the host's run on a stream of their own, beside the program's.
//
// In one order: what a copy reads has been queued on the current stream of the calling thread when
// the copy is asked for; copies run in the order in which they were asked for; what is to see them
// on the device waits for a mark.
//
// Threads: one at a time. Failure: DeviceFailed with what the device says; Timeout.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tutti/group.h"

namespace tutti {

class Timeline;

/// What copies have cost.
struct DeviceCosts {
  std::size_t bytes = 0;    ///< both ways
  double wait_seconds = 0;  ///< of the host
};

/// A point in the order of copies: what was asked for before it.
using DeviceMark = std::shared_ptr<c10::Event>;

/// Bytes that this process may still allocate there: what is free, and what libtorch keeps of those
/// that were. None where its allocator does not tell.
std::optional<std::size_t> free_bytes_on(c10::Device device);

class TorchDevice {
 public:
  /// Each wait of the host lasts `deadline` at most, without it the job's.
  TorchDevice(const Group& group, c10::Device device,
              std::optional<std::chrono::milliseconds> deadline);

  c10::Device device() const { return device_; }
  /// Memory of the host, in the sizes, strides and type of `like`, from which and to which copies
  /// run beside the program (pinned). Not initialised.
  torch::Tensor host_like(const torch::Tensor& like) const;

  /// Memory of the device, likewise. OutOfMemory says what of Tutti's is there: "the gradients of …
  /// take 12 MB there".
  torch::Tensor empty_like(const torch::Tensor& like,
                           const std::function<std::string()>& held) const;

  /// Copies between a tensor of the device and one of the host, of the same sizes, strides and
  /// type. The program may free that of the device at once. That of the host may be written or read
  /// once a mark after the copy has passed.
  void copy(const torch::Tensor& from, const torch::Tensor& to);
  DeviceMark mark();
  /// Runs `work`, whose calls are then queued in the order of copies, beside the program. It may
  /// free what is `used`, of the device or undefined, at once.
  void queue(const std::function<void()>& work, std::initializer_list<torch::Tensor> used);
  /// Runs `work`, whose calls are queued on the stream of the calling thread.
  void run(const std::function<void()>& work) const;
  /// What is queued here from now on comes after the mark, which is another object's.
  void comes_after(const DeviceMark& mark);
  /// On which copies run.
  const c10::Stream& stream() const { return side_; }

  bool has_passed(const DeviceMark& mark) const;
  /// Returns when it has passed. `what` is asked for errors: "gradients of step 7".
  void wait(const DeviceMark& mark, const std::function<std::string()>& what);
  /// What the calling thread queues on the device from now on comes after the mark.
  void current_stream_waits(const DeviceMark& mark) const;
  /// What the calling thread has queued may use memory that another stream was given; it may be
  /// freed at once.
  void current_stream_uses(const torch::Tensor& tensor) const;
  /// Since this was asked last.
  DeviceCosts costs() { return std::exchange(costs_, {}); }

 private:
  template <class Call>
  auto guarded(Call&& call) const;

  c10::Device device_;
  std::chrono::milliseconds deadline_;
  std::string who_;     ///< "rank 1", in errors
  Timeline* timeline_;  ///< null without one
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream side_;
  DeviceCosts costs_;
};

}  // namespace tutti
