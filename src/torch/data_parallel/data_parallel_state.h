#pragma once

// The state behind a DataParallel: takes gradients from the hooks, hands them to the step exchange
// as leaves, and puts the reduced ones in place.
//
// A step is one of: a single backward (opened by its first gradient, finished when it ends), a
// scope of micro-batches (opened and finished by Accumulation), or a synchronize().

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/dense_gradients.h"
#include "sync/step/step_exchange.h"
#include "torch/data_parallel/gradient_views.h"
#include "torch/data_parallel/parallel_parts.h"
#include "torch/data_parallel/placed_parameters.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/wrapped_model.h"
#include "tutti/data_parallel.h"

namespace tutti {

class DataParallelState : public GradientSink,
                          public std::enable_shared_from_this<DataParallelState> {
 public:
  DataParallelState(const Group& group, WrappedModel model, const DataParallelOptions& options);
  ~DataParallelState() override;
  /// Hooks the parameters: needs the object to be shared already.
  void attach();

  // GradientSink
  void gradient(std::size_t parameter, const torch::Tensor& value) override;
  void accumulated(std::size_t parameter) override;
  void backward_ended(bool completed) override;

  // Steps.
  void next_weight(double weight);
  void open_scope(const AccumulateOptions& options);
  void run_leaf(double weight, const std::optional<std::uint64_t>& seed,
                const std::function<torch::Tensor()>& compute);
  void finish_scope();
  void synchronize(std::optional<double> weight);
  std::int64_t join(const std::function<void()>& update);
  /// Drops the step on all workers, unless an exception has just done so; gradients are undefined
  /// afterwards.
  void fail(const std::string& why) noexcept;
  void sync_buffers();
  /// An object that ends unused warns.
  void use() { is_used_ = true; }
  /// Collectives of the group besides steps: the object is used, and ends where the group does.
  void collectively(const std::function<void()>& calls);
  void broadcast_placed() { owned_->send(options_.deadline); }

  /// Number of the accumulation scope that is open; 0 if none is.
  std::uint64_t scope() const { return in_scope_ ? scope_ : 0; }
  bool stopped() const { return stopped_; }
  std::vector<std::string> touched() const;
  const StepReport& report() const { return outcome_.report; }
  TrafficReport traffic() const { return step_parts_.traffic(); }
  const StepExchange& exchange() const { return *exchange_; }
  const Group& group() const { return group_; }

 private:
  void before_step();
  void open_backward();
  void take(std::size_t parameter, const torch::Tensor& value, bool last);
  bool take_gradients_set_by_hand(bool last);
  void finish();
  void look_first();
  void end() noexcept;
  void drop(const std::string& why) noexcept;
  template <class Body>
  void in_step(Body&& body);

  Group group_;
  WrappedModel model_;
  DataParallelOptions options_;
  std::unique_ptr<StepExchange> exchange_;
  std::unique_ptr<CodedGradients> coded_;  ///< null without a codec
  std::unique_ptr<DenseGradients> dense_;
  std::unique_ptr<RowGradients> rows_;
  std::vector<GradientSource*> sources_;  ///< these
  std::unique_ptr<PlacedParameters> owned_;
  std::vector<std::unique_ptr<ParameterHooks>> hooks_;
  std::unique_ptr<GradientViews> views_;
  StepParts step_parts_;
  ModelMemory memory_;
  std::uint64_t generator_seed_ = 0;   ///< torch's, when this was made
  std::uint64_t generator_state_ = 0;  ///< digest
  StepExchange::Outcome outcome_;

  double next_weight_ = 1;
  bool in_scope_ = false;
  std::uint64_t scope_ = 0;  ///< scopes opened so far
  bool in_leaf_ = false;
  bool last_backward_ = false;  ///< of the open leaf
  int backward_ = -1;           ///< number of the backward whose gradients are being taken
  int latest_backward_ = -1;
  bool stopped_ = false;
  bool is_used_ = false;  ///< by a step, or another collective
  bool dropped_ = false;  ///< an exception has told this worker that the last step was dropped
};

}  // namespace tutti
