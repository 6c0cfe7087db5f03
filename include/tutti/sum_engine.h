#pragma once

// Engines that add up the gradients of a DataParallel in the place of Tutti's own sum, where
// DataParallelOptions::sum is Sum::fast: NCCL, or whatever the program hands over.
//
// An engine adds in an order of its own: every worker has to get the same bits, which are others
// with another number of workers. docs/gpu.md#which-sum has when which is better.
//
// Threads: one at a time, as a DataParallel calls it. Failure: each function's.

#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Backend;
}

namespace tutti {

class Group;

class SumEngine {
 public:
  virtual ~SumEngine() = default;

  /// In logs and errors, the same on all workers: "nccl".
  virtual std::string name() const = 0;
  /// This worker's place among those that call it alike: the rank in the group, and its size.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Begins Σ over all workers of `flat`, in its place: contiguous, of one dimension, float32 or
  /// float64, where the model is. All workers call it as often, in the same order, with the same
  /// sizes. On a device the sum is queued on the calling thread's current stream; on the CPU it
  /// runs beside the program. Nobody touches the elements until it has finished, and the engine
  /// keeps the tensor so long. It waits for other workers at most to connect.
  virtual void all_reduce(const torch::Tensor& flat) = 0;
  /// Whether all that was begun has finished; on a device, where its stream tells that, whether
  /// all has been queued. Throws what has failed. Does not wait.
  virtual bool finished() = 0;
  /// Ends what is running without the other workers, which may never come. Nothing else is called
  /// afterwards.
  virtual void abort() noexcept = 0;

  /// Whether abort() was called. A DataParallel refuses such an engine, and another one's.
  bool has_ended() const { return has_ended_; }

 private:
  friend class FastGradients;
  bool is_taken_ = false;
  bool has_ended_ = false;
};

/// A backend of libtorch's c10d, of which only allreduce() is called, and which nobody else uses
/// meanwhile: its rank and size are those of the group. Where a peer may end, it needs a time-out
/// of its own, after which it gives up what it cannot abort; and with Gloo the program ignores
/// SIGPIPE, which would end it too (c10d_engine() warns). On a device wait() of its works has to
/// make the current stream wait, as ProcessGroupNCCL's does. InvalidArgument for null.
std::shared_ptr<SumEngine> c10d_engine(c10::intrusive_ptr<c10d::Backend> backend);

/// NCCL 2.14 or newer, by its C functions in `library`, which is looked for as dlopen() does. Each
/// worker of the group has a device of its own: NCCL refuses two on one. Collective, and under the
/// job's deadline. Unsupported on all workers where one has no such library, which it names;
/// InvalidArgument for the CPU, and for what NCCL calls so; DeviceFailed with NCCL's own text.
std::shared_ptr<SumEngine> nccl_engine(const Group& group, torch::Device device,
                                       const std::string& library = "libnccl.so.2");

}  // namespace tutti
