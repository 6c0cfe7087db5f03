#pragma once

// Computes this worker's stages of its pipeline's shards, in the order of the schedule: runs their
// layers, gives what they leave to the next stages, runs their backwards, and hands parameters'
// gradients to the ShardRunner, shard by shard.
//
//   receive → forward → send │ … │ receive → backward → leaf of the shard → send
//
// A worker that fails makes all calls that are left nevertheless, and says so in each: nobody waits
// for it, and all drop the step.
//
// Threads: one. Failure: what closures and layers throw; that of the group's messages.

#include <torch/torch.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sync/plan/assignment.h"
#include "sync/step/step_exchange.h"
#include "torch/model/wrapped_model.h"
#include "torch/pipeline/stage_graph.h"
#include "torch/pipeline/stage_messages.h"
#include "torch/shards/keeper_board.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shard_runner.h"
#include "torch/shards/step_notes.h"
#include "tutti/trainer.h"

namespace tutti {

class PipelineRunner {
 public:
  /// Objects that shards are computed with; all of them outlive this object.
  struct Parts {
    const Group& group;
    const WrappedModel& model;
    StepExchange& exchange;
    ShardRunner& runner;
    ShardBuffers& buffers;
    KeeperBoard& keepers;  ///< of parameters, and buffers behind them
    StepNotes& notes;
  };
  /// Collective.
  PipelineRunner(const Parts& parts, const Pipeline& pipeline, const std::string& name,
                 ShardRange mine);

  /// This worker's part of a step.
  void run(const Trainer::Inputs& inputs, const Trainer::Loss& loss);
  /// Whatever was computed has failed.
  void drop() noexcept;

  /// Adds what this worker sent in the last step.
  void add_to(StepReport& report) const {
    report.stage_bytes = messages_.bytes() - bytes_before_;
    report.tied_bytes = messages_.parameter_bytes() - parameter_bytes_before_;
  }

 private:
  /// A shard on its way through a stage.
  struct Passage {
    StageMessage in;    ///< to its forward
    StageMessage back;  ///< to its backward
    StageGraph graph;
    TensorList entered;                     ///< while forward runs
    ShardBuffers::Place buffers;            ///< as forward has left them
    torch::Tensor random_state;             ///< between the halves of a backward
    std::vector<std::uint8_t> used_before;  ///< parameters, by stages before this one
    bool runs = true;
    double weight = 0;
    StageMessage out;  ///< of its backward
  };
  /// A shard on this worker.
  struct Progress {
    int open = 0;  ///< stages whose parameters' gradients are to come
    bool runs = true;
    double weight = 0;
    ShardMetrics metrics;
    std::vector<torch::Tensor> buffers;
    std::vector<int> changed_by;  ///< by buffer: the stage, of those defined
    std::vector<std::pair<std::size_t, torch::Tensor>> held;  ///< gradients
  };
  using Key = std::pair<int, int>;  // stage and shard of this pipeline

  /// A message that is to come.
  struct Expected {
    Key to;
    StageMessage Passage::*message;
  };

  bool has_failed() const { return failed_ != nullptr || others_failed_; }
  void call(const PipelineCall& call);
  void expect(int peer, const Expected& message);
  void receive_up_to(const StageAction& action);
  void receive_next(int peer);
  std::string message_text(bool is_activation, int stage, int shard) const;
  void compute(const StageAction& action);
  void forward(int stage, int shard);
  TensorList begin_shard(Passage& passage, int shard);
  static void copy_inputs(Passage& passage, TensorList& values);
  TensorList run_layers(int stage, int shard, TensorList values);
  void require_apart_unchanged(int stage, int shard, const Passage& passage,
                               const std::vector<std::uint32_t>& versions) const;
  bool is_apart(const Passage& passage, const TensorList& leaving,
                const torch::Tensor& output) const;
  void leave(int stage, int shard, Passage& passage, const TensorList& results);
  void end_shard(Passage& passage, int shard, const TensorList& outputs);
  void give_on(int stage, int shard, Passage& passage, const TensorList& outputs,
               NumberedTensors buffers);
  void backward(const StageAction& action);
  std::vector<ParameterGradient> arrived_parameters(int stage, Passage& passage);
  void give_back(int stage, int shard);
  void note_shared(const TensorList& shared);
  NumberedTensors note_buffers(int stage, int shard, const StageMessage& in);
  void add_metrics(int shard, const ShardMetrics& metrics);
  std::size_t index_of(const torch::Tensor& parameter) const;
  std::int64_t step_shard(int shard) const { return mine_.begin + shard; }
  bool has_stage(int stage) const;
  bool is_last(int stage) const { return stage + 1 == pipeline_.stages; }
  std::string where(int stage, int shard) const;
  void hand_in();

  Parts parts_;
  Pipeline pipeline_;
  ShardRange mine_;
  std::vector<int> bounds_;  ///< of stages, in layers
  int place_ = 0;            ///< among the workers of the pipeline
  StageMessages messages_;
  std::vector<PipelineCall> calls_;
  std::vector<int> own_stages_;
  std::map<const void*, std::size_t> parameters_;  ///< by tensor
  std::vector<std::uint8_t> shared_;               ///< by parameter: Pipeline::shared

  // What follows belongs to the step that runs.
  const Trainer::Inputs* inputs_ = nullptr;
  const Trainer::Loss* loss_ = nullptr;
  std::map<int, std::deque<Expected>> expected_;  ///< by peer
  std::map<Key, Passage> passages_;
  std::map<Key, StageMessage> outbox_;       ///< activations that are to be sent
  std::map<Key, StageMessage> back_outbox_;  ///< gradients that are
  std::vector<Progress> progress_;
  std::vector<std::uint8_t> changed_;  ///< by buffer, where the last stage is: by any stage
  std::uint64_t bytes_before_ = 0;
  std::uint64_t parameter_bytes_before_ = 0;
  std::exception_ptr failed_;
  bool others_failed_ = false;
};

}  // namespace tutti
