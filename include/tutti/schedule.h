#pragma once

// Learning rates over the steps of a run: a factor by which every group's learning rate is
// multiplied. Its text tells two schedules apart in logs and checkpoints.
//
//   auto schedule = tutti::Schedule::warm_up(100, tutti::Schedule::cosine(900, 0.1));
//
// Threads: values; calls are as safe as the user's function. Failure: InvalidArgument for
// parameters that make no sense, and for a factor that is negative or not finite.

#include <cstdint>
#include <functional>
#include <string>

namespace tutti {

class Schedule {
 public:
  /// "constant": factor 1 in every step.
  Schedule();
  /// A function of the step, counted from 1, that must return the same on every worker: a Trainer
  /// compares it in every step. `name` stands for it: change the name whenever the function
  /// changes. Neither may be empty.
  Schedule(std::string name, std::function<double(std::int64_t step)> factor);

  /// step / steps up to step `steps` ≥ 1, where it is 1, then what `after` gives for its steps from
  /// 1 on (gradual warm-up: Goyal et al. 2017, arXiv 1706.02677, section 2.2).
  static Schedule warm_up(std::int64_t steps, const Schedule& after = {});
  /// floor + (1 − floor) · (1 + cos(π · (step − 1) / steps)) / 2 up to step `steps` ≥ 1, then
  /// `floor`, in 0 … 1 (Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5, one period;
  /// torch's CosineAnnealingLR with T_max = steps).
  static Schedule cosine(std::int64_t steps, double floor = 0);
  /// factor^⌊(step − 1) / every⌋ with every ≥ 1 and a positive, finite factor (torch's StepLR).
  static Schedule step_decay(std::int64_t every, double factor);

  /// `schedule` in epochs: what it gives for step k holds for all steps of the k-th epoch
  /// (Trainer::epoch(); the first one where no shard asks for samples). Inside warm_up() epochs
  /// are counted from the run's begin.
  static Schedule per_epoch(const Schedule& schedule);

  /// What learning rates are multiplied by in a step ≥ 1 before which so many epochs were over.
  double operator()(std::int64_t step, std::int64_t epochs = 0) const;
  /// "constant", "cosine over 900 to 0.1", "warm-up over 100, then cosine over 900 to 0.1", …
  /// Equal texts mean equal parameters.
  const std::string& text() const { return text_; }

 private:
  using Factor = std::function<double(std::int64_t step, std::int64_t epochs)>;
  static Schedule of(std::string text, Factor factor);

  std::string text_ = "constant";
  Factor factor_;  ///< empty: 1
};

}  // namespace tutti
