#pragma once

// What param.grad is after a sync: views of the shared arena, at addresses that never change unless
// the program keeps one. And what else may be found there before the next one.
//
// Threads: one. Failure: InvalidArgument names the parameter.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sync/step/step_exchange.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class GradientViews {
 public:
  /// `model` and `exchange` must outlive this. The views keep the arena alive.
  GradientViews(const WrappedModel& model, const StepExchange& exchange);

  std::size_t size() const { return views_.size(); }
  /// A tensor with the layout and type that a gradient must have to be folded without a copy;
  /// undefined for row-sparse parameters.
  const torch::Tensor& view(std::size_t parameter) const { return views_[parameter]; }

  /// Sets the reduced gradient of a row-sparse parameter for the next install(). The program owns
  /// it from then on.
  void set_rows(std::size_t parameter, torch::Tensor gradient) {
    rows_[parameter] = std::move(gradient);
  }
  /// Puts reduced gradients into param.grad; gradients that no worker wrote become undefined.
  void install(const std::vector<std::uint8_t>& touched);
  /// Gives reduced gradients that the program keeps in its own tensors memory of their own, with
  /// their values, before any worker writes into the arena again.
  void release_kept();
  /// The same for one parameter: before this worker writes into the arena again.
  void release_kept(std::size_t parameter);
  /// Makes all gradients undefined.
  void drop() noexcept;
  /// Takes a gradient that the program has set, which is defined and no view of ours, out of
  /// param.grad. Throws if it is sparse and the parameter is not, carries a graph, or does not fit
  /// the parameter.
  torch::Tensor take_set_by_hand(std::size_t parameter) const;
  bool holds_set_by_hand(std::size_t parameter) const;
  /// InvalidArgument that names the first gradient that the program has set; `where` is the reason.
  void require_none_set_by_hand(const char* where) const;
  /// Throws if param.grad still holds the reduced gradient of that step. One that zero_grad() has
  /// zeroed in place does not count.
  void require_cleared(std::size_t parameter, std::int64_t step) const;
  /// `grad` lies where our view does, or the values of a row-sparse one do.
  bool is_view(std::size_t parameter, const torch::Tensor& grad) const;

 private:
  torch::Tensor new_view(std::size_t parameter) const;
  bool is_kept(std::size_t parameter) const;
  void release(std::size_t parameter);
  /// zero_grad(false) has zeroed it in place.
  bool is_cleared(std::size_t parameter, const torch::Tensor& grad) const;

  const WrappedModel& model_;
  const StepExchange& exchange_;
  std::vector<torch::Tensor> views_;
  std::vector<torch::Tensor> rows_;  ///< of row-sparse parameters, until install()
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> installed_;  ///< values of theirs
  std::vector<std::int64_t> versions_;  ///< as the last sync left them
};

}  // namespace tutti
