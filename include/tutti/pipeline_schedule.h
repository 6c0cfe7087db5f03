#pragma once

// In which order the workers of a pipeline compute: a model is cut into stages, a step into
// micro-batches, and each worker has a list of forwards and backwards of its own stages. Plain
// data, without tensors: a runtime executes it, simulate() (tutti/pipeline_timeline.h) predicts its
// time.
//
//   auto schedule = tutti::PipelineSchedule::one_f_one_b(4, 8);
//   for (const tutti::PipelineCall& call : tutti::calls_of(schedule, worker)) …
//
// Stages, workers and micro-batches are counted from 0. Every stage takes the micro-batches in
// ascending order, both in forward and in finishing gradients of its parameters: these are folded
// in the order of the micro-batches.
//
// Threads: values; safe anywhere. Failure: InvalidArgument, which names worker, stage and
// micro-batch where they exist.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// What a worker does with a micro-batch on a stage. The two halves of a backward are apart where
/// only the first one is waited for by another stage.
enum class StageWork : std::uint8_t {
  forward,
  backward,         ///< both halves at once
  backward_input,   ///< gradient of the stage's input, which the stage before waits for
  backward_weight,  ///< gradients of the stage's parameters; after the input's
};

struct StageAction {
  StageWork work = StageWork::forward;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const StageAction&) const = default;
};

/// "forward of stage 2, micro-batch 5".
std::string text_of(const StageAction& action);

class PipelineSchedule {
 public:
  /// All forwards, then all backwards; every stage keeps what all micro-batches need. One stage per
  /// worker. The bubble, idle time over all, is (S − 1) / (S − 1 + V) with S stages, V
  /// micro-batches and equal costs (Huang et al. 2019, arXiv 1811.06965).
  static PipelineSchedule gpipe(int stages, int micro_batches);
  /// "1f1b": as few forwards ahead as keep all workers busy, then forward and backward in turn. The
  /// bubble of gpipe(), but stage s keeps S − s micro-batches at most (Narayanan et al. 2021,
  /// PipeDream-Flush in arXiv 2006.09503). Fewer micro-batches than stages are fine.
  static PipelineSchedule one_f_one_b(int stages, int micro_batches);
  /// 1F1B with C stages per worker, two or more: stage s is on worker s % W. The bubble is
  /// (W − 1) / (W − 1 + C · V), for C times the transfers; worker w keeps 2 · (W − 1 − w) +
  /// (C − 1) · W + 1 micro-batches of its stages at most, all stages added up (Narayanan et al.
  /// 2021, arXiv 2104.04473, section 2.2). `micro_batches` is a multiple of `workers`.
  static PipelineSchedule interleaved(int workers, int stages_per_worker, int micro_batches);
  /// "zb-h1": 1F1B whose backwards are halved; stage s runs the weights' half s micro-batches
  /// later, and fills the end with it. With equal costs of forward and halves, and V ≥ S, the
  /// bubble is (S − 1) / (S − 1 + 3 · V). Stage s waits with S − s micro-batches at most for the
  /// input's half, as in 1F1B, and with S for the weights', as its first stage (Qi et al. 2023,
  /// arXiv 2401.10241, ZB-H1).
  static PipelineSchedule zb_h1(int stages, int micro_batches);
  /// An order of the caller's own, by worker. Each stage lies on one worker as a whole, every
  /// worker has a stage, each micro-batch has one forward and one backward, or its halves, on each
  /// stage, in the order that is said above, and no workers wait for one another for ever.
  static PipelineSchedule custom(std::string name, int stages, int micro_batches,
                                 std::vector<std::vector<StageAction>> actions_of_workers);
  /// By its kind: "gpipe", "1f1b", "interleaved" or "zb-h1". 0 workers: one for each stage.
  static PipelineSchedule named(std::string_view kind, int workers, int stages, int micro_batches);

  /// The kind, or the name of a custom one.
  const std::string& name() const { return name_; }
  int workers() const { return static_cast<int>(actions_.size()); }
  int stages() const { return static_cast<int>(worker_of_.size()); }
  int micro_batches() const { return micro_batches_; }
  int worker_of(int stage) const;
  /// In ascending order.
  std::vector<int> stages_of(int worker) const;
  /// What a worker computes, in order.
  const std::vector<StageAction>& actions(int worker) const;
  /// "1f1b: 4 stages on 4 workers, 8 micro-batches". Equal texts mean equal schedules: that of a
  /// custom one has a hash of its actions.
  std::string text() const;

 private:
  PipelineSchedule(std::string name, int stages, int micro_batches,
                   std::vector<std::vector<StageAction>> actions);

  std::string name_;
  std::string hash_;  ///< of a custom one's actions; else empty
  int micro_batches_ = 0;
  std::vector<int> worker_of_;  ///< by stage
  std::vector<std::vector<StageAction>> actions_;
};

/// What a worker does, transfers included.
struct PipelineCall {
  enum class Kind : std::uint8_t {
    compute,
    send_activation,     ///< the result of a stage's forward, to the next stage's worker
    receive_activation,  ///< the same, at that worker
    send_gradient,       ///< of a stage's input, to the worker of the stage before
    receive_gradient,    ///< the same, at that worker
  };
  Kind kind = Kind::compute;
  /// What is computed; of a transfer that which made what is moved, on either side.
  StageAction action = {};
  /// The other worker of a transfer; −1 of a compute.
  int peer = -1;
  bool operator==(const PipelineCall&) const = default;
};

/// All that a worker does in a step, in order. Neighbouring stages on one worker need no transfer.
/// Workers that follow their lists never wait for one another for ever, even where a send returns
/// only when its receive has been called, and two workers' messages to each other are sent and
/// received in the same order. A send follows its compute, other transfers aside, and a receive
/// comes as late as its sender need not wait for it.
std::vector<PipelineCall> calls_of(const PipelineSchedule& schedule, int worker);

}  // namespace tutti
