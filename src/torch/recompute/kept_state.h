#pragma once

// What a segment's result depends on besides its inputs and parameters, kept so that it can run
// again: random generators' states, and autocast.
//
// Threads: any. Failure: Unsupported for a generator whose state cannot be taken.

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/model/random_state.h"

namespace tutti {

class KeptState {
 public:
  /// Of torch's default generators, and of `others`.
  KeptState(const std::vector<at::Generator>& others, const std::string& name);

  /// While it lives everything is as it was kept; then as it was before. The buffers of `modules`
  /// are in the end what they were in the beginning, without a word to autograd.
  class Restored {
   public:
    Restored(const KeptState& kept, const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    struct Autocast {
      Autocast();
      void set() const;
      bool is_on;
      torch::ScalarType type;
    };
    struct Buffer {
      torch::Tensor own;
      torch::Tensor copy;
    };
    RandomState random_;
    Autocast autocast_;
    std::vector<Buffer> buffers_;
    friend class KeptState;
  };

 private:
  RandomState random_;
  Restored::Autocast autocast_;
};

}  // namespace tutti
