#pragma once

// The gradients of a DataParallel that an engine adds up (Sum::fast): in flat buckets, which leave
// in one fixed order, each when it and all before it are complete, while backward runs. What is
// left leaves at the end of backward.
//
//   take: weight · gradient into its bucket │ all_reduce of full buckets │ publish: of the others
//          │ apply: all sums have come, ÷ Σ weights │ give: to param.grad
//
// Every worker begins every sum of every step, with zeros where it has nothing: of a dropped step
// too, so that sums of the next one meet their own. The exchange knows of each gradient that it is
// there, and nothing else of it: weights, dropped steps, and what was touched are its business.
// On a device, gradients go into buckets on one stream, and sums and results on another.
//
// Threads: one at a time. Failure: PeerLost, Timeout and TorchDevice's end the engine, and so does
// its own failure, which is DeviceFailed; a step that begins afterwards throws the same.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/plan/fusion.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/step/traffic_count.h"
#include "torch/device/torch_device.h"
#include "torch/model/wrapped_model.h"
#include "tutti/sum_engine.h"

namespace tutti {

class FastGradients : public StepPart {
 public:
  /// Keeps references. InvalidArgument where the engine has another rank or size than the group.
  FastGradients(const WrappedModel& model, StepExchange& exchange,
                std::shared_ptr<SumEngine> engine);
  /// Aborts what runs.
  ~FastGradients() override;
  FastGradients(const FastGradients&) = delete;
  FastGradients& operator=(const FastGradients&) = delete;

  /// A gradient of the open leaf, in the parameter's layout. `last`: no other one of the parameter
  /// comes in this leaf.
  void take(std::size_t parameter, const torch::Tensor& gradient, bool last);

  void open(const StepFacts& step) override;
  void publish() override;
  void apply(const StepFacts& step) override;
  void commit(StepFacts& step) override;
  void drop() noexcept override;
  void add_traffic(TrafficReport& report) const override;

  /// Copies the reduced gradient of a touched parameter, once it is applied, to `to`, which is in
  /// the parameter's layout.
  void give(std::size_t parameter, const torch::Tensor& to);
  /// What the calling thread queues on the device from now on sees what was given.
  void hand_over();

 private:
  struct Bucket {
    std::vector<std::uint32_t> parameters;
    std::int64_t elements = 0;
    c10::ScalarType type = torch::kFloat32;  ///< 16-bit gradients are added in float32
    torch::Tensor flat;                      ///< undefined: made when it is needed
    std::size_t missing = 0;                 ///< parameters that have not come in the open step
  };
  static Buckets buckets_of(const WrappedModel& model, const StepExchange& exchange);
  torch::Tensor slot(std::size_t parameter) const;
  torch::Tensor zeros(const Bucket& bucket) const;
  /// Runs what queues work, on a stream of `device` after what the current one has; `used` may be
  /// freed at once.
  static void queue(TorchDevice* device, const std::function<void()>& work,
                    const torch::Tensor& used);
  void begin_next();
  void begin_missed(std::uint64_t before);
  void await_sums();
  bool has_finished(const DeviceMark& mark);
  void throw_if_dropped();
  std::string failure_text() const;
  void end(const std::string& why) noexcept;

  const WrappedModel& model_;
  StepExchange& exchange_;
  std::shared_ptr<SumEngine> engine_;
  std::unique_ptr<TorchDevice> gathers_;  ///< null on the CPU, as is the other
  std::unique_ptr<TorchDevice> sums_;
  std::vector<Bucket> buckets_;
  PlainTraffic traffic_;
  std::vector<std::uint32_t> bucket_of_;
  std::vector<std::int64_t> offset_of_;  ///< elements
  std::vector<std::uint8_t> written_;    ///< by parameter, in the open step
  std::uint64_t step_ = 1;               ///< whose sums begin, counted as the protocol counts
  std::size_t next_ = 0;                 ///< the bucket of that step that begins next
  bool is_running_ = false;              ///< sums may not have finished
  std::string failure_;                  ///< what the engine has said
  std::string ended_;                    ///< why the engine is not used any more
};

}  // namespace tutti
