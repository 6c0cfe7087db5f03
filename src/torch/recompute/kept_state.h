#pragma once

// What a segment's result depends on besides its inputs and parameters, kept so that it can run
// again: random generators' states, and autocast, of the CPU and of devices.
//
// Threads: any. Failure: Unsupported for a generator whose state cannot be taken.

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/model/random_state.h"

namespace tutti {

/// Whether operations of a kind of device are cast, and to what.
struct Autocast {
  explicit Autocast(c10::DeviceType device);
  void set() const;
  c10::DeviceType device;
  bool is_on;
  torch::ScalarType type;
};

class KeptState {
 public:
  /// Keeps the states of torch's default generators, which are the CPU's, those of `devices` and
  /// that of the device that the calling thread works on, and the states of `others`.
  KeptState(const std::vector<c10::Device>& devices, const std::vector<at::Generator>& others,
            const std::string& name);

  /// While it lives everything is as it was kept; then as it was before. The buffers of `modules`
  /// are in the end what they were in the beginning, without a word to autograd.
  class Restored {
   public:
    Restored(const KeptState& kept, const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    struct Buffer {
      torch::Tensor own;
      torch::Tensor copy;
    };
    RandomState random_;
    std::vector<Autocast> autocast_;
    std::vector<Buffer> buffers_;
    friend class KeptState;
  };

 private:
  RandomState random_;
  std::vector<Autocast> autocast_;
};

}  // namespace tutti
