#pragma once

// Lets a backward create gradients in the worker's arena, from which other workers read them, so
// that they need not be copied there.
//
// A backward allocates the same sizes in the same order whenever it computes the same graph. So
// this class notes which of the allocations of a parameter's size became its gradient, and once
// that has been so twice, it serves that allocation from the parameter's free slot. Where the graph
// changes, another tensor may get the place; the gradient is then copied to another slot, as all
// were before, and the place comes back when that tensor dies.
//
// Threads: the backward's; tensors may die on any. Failure: none of its own.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sync/step/step_exchange.h"

namespace tutti {

class ZeroCopyGradients {
 public:
  /// Keeps a reference.
  explicit ZeroCopyGradients(StepExchange& exchange);

  /// While it lives, this thread's allocations are those of a backward.
  class Watch {
   public:
    explicit Watch(ZeroCopyGradients& zero_copy);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    ZeroCopyGradients& zero_copy_;
    ZeroCopyGradients* before_;  ///< whose backward this one is in: a hook may train another model
  };

  /// Notes a gradient in the parameter's layout, before it is written. `may_stay`: there is no
  /// other reference to it, so that its memory may be taken over.
  void arrived(std::size_t parameter, const torch::Tensor& gradient, bool may_stay);

  /// Returns memory for an allocation of the running backward, or an empty pointer for torch's own.
  at::DataPtr serve(std::size_t bytes);
  /// Notes the address of an allocation, after serve().
  void served(std::size_t bytes, const void* at);

 private:
  /// Facts about the k-th allocation of some size in a backward.
  struct Allocation {
    std::int64_t parameter = -1;  ///< whose gradient it became last; −1: none
    int times = 0;                ///< in succession
    const void* at = nullptr;     ///< in the running backward
    bool lent = false;            ///< in the running backward: it got the parameter's slot
  };
  struct Size {
    std::vector<Allocation> allocations;
    std::size_t next = 0;  ///< in the running backward
  };
  void begin();
  void end();

  StepExchange& exchange_;
  std::vector<bool> may_be_placed_;              ///< by parameter
  std::unordered_map<std::size_t, Size> sizes_;  ///< by bytes: those of large parameters
};

}  // namespace tutti
