#pragma once

// How gradients leave autograd. A pre-hook on each parameter's AccumulateGrad node takes the
// gradient while it is hot and hands on nothing: torch neither clones it nor adds it to what
// param.grad holds. Hooks that the user put on the parameter run before it. The parameter's
// post-accumulate slot holds a tripwire: it only acts if torch did accumulate, because the
// parameter was frozen when it was wrapped, or because its node was replaced.
//
// Threads: the one that runs backward.

#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tutti {

/// Receives what the hooks see. `parameter` is an index of the plan.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// The gradient of this backward, complete over all uses of the parameter.
  virtual void gradient(std::size_t parameter, const torch::Tensor& value) = 0;
  /// torch accumulated into param.grad instead.
  virtual void accumulated(std::size_t parameter) = 0;

  /// It updates the parameters itself: whoever else writes to them is an error.
  virtual bool owns_values() const { return false; }

  // What operations ask whose backward comes to these parameters (loss_weight.h).
  /// How much the loss of the running backward counts; nullopt: nobody weighs losses here.
  virtual std::optional<double> loss_weight() const { return {}; }
  /// Gradients of the running backward travel by that weight.
  virtual void carried() {}
  /// The step cannot be right, and is to fail once its backward is over: `why` is
  /// InvalidArgument's.
  virtual void refuse(const std::string& /*why*/) {}
  /// The loss counts nothing, but those of others have a gradient of what was given to `operation`.
  virtual void owe(const std::string& /*operation*/) {}
  /// Whether owe() was called in this leaf of the step.
  virtual bool owes() { return false; }
  /// `DataParallel "model"`, in errors.
  virtual std::string loss_label() const { return {}; }
};

/// The warning that the first backward logs after the object that took the gradients has ended.
struct EndedNotice {
  std::string warning;
  std::atomic<bool> said{false};
};

class ParameterHooks {
 public:
  /// InvalidArgument when the parameter's post-accumulate slot is taken, by a DataParallel, a
  /// Trainer or the user.
  static void require_free(const torch::Tensor& parameter, const std::string& label);
  /// Fills that slot, which has to be free.
  ParameterHooks(torch::Tensor parameter, const std::string& label, std::size_t index,
                 std::weak_ptr<GradientSink> sink);
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  /// Hooks the AccumulateGrad node if the parameter requires a gradient and is not hooked yet.
  void attach();
  /// Returns false where the slot has been replaced since.
  bool slot_is_ours() const;
  /// After this object, the next backward that reaches the parameter logs `warning`, unless it has
  /// reached another parameter that shares the notice.
  void leave(std::shared_ptr<EndedNotice> notice) { notice_ = std::move(notice); }
  /// Removes what leave() has left.
  static void forget(const torch::Tensor& parameter);
  /// Who takes the parameter's gradient; null: nobody.
  static std::shared_ptr<GradientSink> sink_of(const torch::Tensor& parameter);

 private:
  class Take;
  class Tripwire;
  class Ended;
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

  torch::Tensor parameter_;
  std::size_t index_;
  std::weak_ptr<GradientSink> sink_;
  NodePointer node_;  ///< torch keeps it weakly: its hook must keep it alive
  const Tripwire* tripwire_ = nullptr;
  std::shared_ptr<EndedNotice> notice_;  ///< null: nothing is left behind
};

/// Identifies the running backward; −1 outside. Later ones have greater numbers.
int current_backward();

}  // namespace tutti
