#pragma once

// Parameters without the program's tensor hooks, while a part of their gradient is computed: hooks
// are for the whole.
//
// Threads: one. Failure: none.

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

namespace tutti {

class WithoutHooks {
 public:
  explicit WithoutHooks(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      auto& own = torch::autograd::impl::hooks(parameter);
      taken_.push_back(std::move(own));
      own.clear();
    }
  }
  ~WithoutHooks() {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      torch::autograd::impl::hooks(parameters_[p]) = std::move(taken_[p]);
    }
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> taken_;
};

}  // namespace tutti
