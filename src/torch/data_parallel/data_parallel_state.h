#pragma once

// The state behind a DataParallel: opens and finishes its steps, whose gradients the hooks of the
// parameters give.
//
// A step is one of: a single backward (opened by its first gradient, finished when it ends), a
// scope of micro-batches (opened and finished by Accumulation), or a synchronize().

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/data_parallel/parallel_objects.h"
#include "torch/data_parallel/step_backwards.h"
#include "torch/data_parallel/told_failure.h"
#include "torch/gradients/backward_watch.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/wrapped_model.h"
#include "tutti/data_parallel.h"

namespace tutti {

class DataParallelState : public GradientSink,
                          public std::enable_shared_from_this<DataParallelState> {
 public:
  DataParallelState(const Group& group, WrappedModel model, SplitLayers layers,
                    const DataParallelOptions& options)
      : own_(group, std::move(model), std::move(layers), options) {}
  ~DataParallelState() override;
  /// Hooks the parameters: needs the object to be shared already.
  void attach() { own_.hook(weak_from_this()); }

  // GradientSink
  void gradient(std::size_t parameter, const torch::Tensor& value) override;
  void accumulated(std::size_t parameter) override;
  std::optional<double> loss_weight() const override;
  void carried() override;
  void refuse(const std::string& why) override { own_.weights->refuse(why); }
  void owe(const std::string& operation) override { own_.weights->owe(operation); }
  bool owes() override { return !own_.weights->owed_by().empty(); }
  std::string loss_label() const override;

  // Steps.
  void next_weight(double weight);
  void open_scope(const AccumulateOptions& options);
  void run_leaf(double weight, const std::optional<std::uint64_t>& seed,
                const std::function<torch::Tensor()>& compute);
  void finish_scope();
  void synchronize(std::optional<double> weight);
  std::int64_t join(const std::function<void()>& update);
  /// Drops the open step, or the next one, on all workers, unless it reports what an exception has
  /// told; gradients are undefined afterwards.
  void fail(const std::string& why) noexcept;
  /// Drops the open step: `error`, null where it cannot be seen, tells the program.
  void leave_scope(const std::string& why, std::exception_ptr error) noexcept;
  /// `error` tells the program that it goes on in an accumulation scope whose step, the last one,
  /// was dropped.
  void told_of_dropped(std::uint64_t scope, std::exception_ptr error) noexcept;
  void sync_buffers();
  /// An object that ends unused warns.
  void use() { is_used_ = true; }
  /// Collectives of the group besides steps: the object is used, and ends where the group does.
  void collectively(const std::function<void()>& calls);
  void broadcast_placed() {
    watch_.settle();
    own_.placed->send(own_.options.deadline);
  }

  /// Number of the accumulation scope that is open; 0 if none is.
  std::uint64_t scope() const { return backwards_.scope(); }
  bool stopped() const { return stopped_; }
  std::vector<std::string> touched() const;
  const StepReport& report() const { return outcome_.report; }
  TrafficReport traffic() const { return own_.step_parts.traffic(); }
  const StepExchange& exchange() const { return *own_.exchange; }

 private:
  /// Where no gradient comes, others may write this worker's sums at once.
  void before_step(bool gradients_come = true);
  void open_backward();
  void backward_aborted(std::exception_ptr error) noexcept;
  void open_parts(bool is_alone = false);
  void finish();
  bool counts_alone(double weight) const;
  void tell_next_weight();
  void drop(const std::string& why) noexcept;
  void forget_step() noexcept;
  template <class Body>
  void in_step(Body&& body);

  ParallelObjects own_;
  StepBackwards backwards_;
  /// Watches the last backward that has opened a step. A call that needs that step to be over
  /// settles it first.
  BackwardWatch watch_{own_.host != nullptr};
  StepFacts facts_;  ///< of the current step, or the last one
  StepExchange::Outcome outcome_;

  bool is_weighted_ = false;  ///< next_weight() was called
  bool stopped_ = false;
  bool is_used_ = false;  ///< by a step, or another collective
  ToldFailure told_;
  std::int64_t dropped_step_ = -1;  ///< the last one
};

}  // namespace tutti
