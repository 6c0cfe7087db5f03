#pragma once

// What param.grad holds in a DataParallel. After a sync they are views of the shared arena, at
// addresses that never change unless the program keeps one; before the next one what the program
// has put there by hand is taken into the step, as backwards' gradients are.
//
// Threads: the one that runs backward. Failure: InvalidArgument or Unsupported names the parameter.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/gradients/gradient_intake.h"
#include "torch/model/wrapped_model.h"
#include "torch/sums/fast_gradients.h"

namespace tutti {

class ParameterGradients : public StepPart {
 public:
  /// Keeps references. The views keep the arena alive. `host` is null where the model is on the
  /// CPU; elsewhere the views are memory of the device, to which sums are copied. `fast` is null
  /// but where an engine adds gradients up: views are memory of their own then, too.
  ParameterGradients(const WrappedModel& model, StepExchange& exchange,
                     const std::vector<GradientSource*>& sources, HostCopies* host = nullptr,
                     FastGradients* fast = nullptr);

  // ---- into the open step ----

  /// Throws where a backward's gradient cannot be reduced.
  void check(std::size_t parameter, const torch::Tensor& value) const {
    intake_.check(parameter, value);
  }
  /// What a backward of the open leaf gives, after what was put in by hand. `last`: no other
  /// gradient of the parameter comes in this leaf.
  void take(std::size_t parameter, const torch::Tensor& value, bool last);
  /// Gradients that no backward of the open leaf produced. With `last`, all of the leaf have come
  /// to the arena when it returns, from a device too: others may fold them.
  void take_set_by_hand(bool last);
  /// torch has accumulated into param.grad. InvalidArgument where a reduced gradient was there.
  void require_accumulated(std::size_t parameter) const;
  /// Whether the program has put gradients in by hand since the last step. InvalidArgument where
  /// a reduced one of that step is still there.
  bool holds_set_by_hand() const;
  /// InvalidArgument that names the first gradient that the program has set; `where` is the reason.
  void require_none_set_by_hand(const char* where) const;

  // ---- out of it ----

  /// Sets the reduced gradient of a row-sparse parameter for the next commit(). The program owns
  /// it from then on.
  void set_rows(std::size_t parameter, torch::Tensor gradient) {
    rows_[parameter] = std::move(gradient);
  }
  /// Gives reduced gradients that the program keeps in its own tensors memory of their own, with
  /// their values, before any worker writes into the arena again.
  void release_kept();
  void open(const StepFacts& step) override;
  void publish() override {
    release_kept();
    settle_sums();
  }
  /// Returns when those of the last step have left for the device: others may write them then.
  /// Where this worker has gradients they come to the host behind the sums.
  void settle_sums() {
    if (host_ != nullptr) host_->settle();
  }
  /// Puts reduced gradients into param.grad; those that no worker wrote, or that another worker
  /// updates alone, become undefined.
  void commit(StepFacts& step) override;
  /// Makes all gradients undefined.
  void drop() noexcept override;

 private:
  /// Whether views are no memory of the arena.
  bool views_own_memory() const { return host_ != nullptr || fast_ != nullptr; }
  /// Whether sums are copied from the host to a device.
  bool is_device() const { return host_ != nullptr && fast_ == nullptr; }
  torch::Tensor new_view(std::size_t parameter) const;
  bool is_in_place(std::size_t parameter) const;
  void give(std::size_t parameter);
  /// The same, where this step has not given it to the view that is there.
  void give_once(std::size_t parameter);
  /// On a device: gives those of them that are touched, in the midst of a step.
  void give_early(std::span<const std::uint32_t> parameters);
  void write(std::size_t parameter, const torch::Tensor& value, bool last);
  bool is_kept(std::size_t parameter) const;
  /// release_kept() of one parameter: before this worker writes into the arena again.
  void release_kept(std::size_t parameter);
  void release(std::size_t parameter);
  /// zero_grad(false) has zeroed it in place.
  bool is_cleared(std::size_t parameter, const torch::Tensor& grad) const;
  bool is_zero_on_device(std::size_t parameter, const torch::Tensor& grad) const;
  /// `grad` lies where our view does, or the values of a row-sparse one do.
  bool is_view(std::size_t parameter, const torch::Tensor& grad) const;
  /// Throws if param.grad still holds the reduced gradient of the last step. One that zero_grad()
  /// has zeroed in place does not count.
  void require_cleared(std::size_t parameter) const;
  bool holds_set_by_hand(std::size_t parameter) const;
  /// Takes a gradient that the program has set, which is defined and no view of ours, out of
  /// param.grad. Throws if it is sparse and the parameter is not, carries a graph, or does not fit
  /// the parameter.
  torch::Tensor taken_by_hand(std::size_t parameter) const;

  const WrappedModel& model_;
  const StepExchange& exchange_;
  HostCopies* host_;
  FastGradients* fast_;
  GradientIntake intake_;
  std::vector<torch::Tensor> views_;  ///< undefined for row-sparse parameters
  std::vector<torch::Tensor> rows_;   ///< of row-sparse parameters, until commit()
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> installed_;  ///< values of theirs
  std::vector<std::int64_t> versions_;  ///< as the last sync left them
  /// In the open step: where its sum was given; null: nowhere.
  std::vector<const void*> given_;
  /// In the open step: zero_grad(false) had zeroed param.grad before its backward, so that tensors
  /// which share its memory are to see the sum, as torch adds into that memory.
  std::vector<std::uint8_t> tied_;
  /// On a device: the version of param.grad that was last found to be zero, to ask for it once.
  mutable std::vector<std::int64_t> zero_versions_;
};

}  // namespace tutti
