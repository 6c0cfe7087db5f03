#pragma once

// Whatever takes part in a step besides the way of its gradients: parameters, buffers, metrics,
// averages, states of shards, checks. Trainer and DataParallel hold StepParts, a list that calls
// each of them in the phases of a step, in the order of the list:
//
//   open │ the program computes │ publish │ wait for all │ judge │ apply │ wait for all │ commit,
//   end
//                                              refused: judge │ drop  │ wait for all │ end
//                                              failed: drop
//
// A step that is refused in a DataParallel has failed on all workers: it is Diverged there.
//
// A feature is a part, and one line in the list.
//
// Threads: one. Failure: what a part throws up to judge() drops the step on all workers; apply()
// and commit() throw nothing but what ends the object.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/step_report.h"
#include "tutti/traffic.h"

namespace tutti {

/// What all workers decide of a step, each by itself, from the same published facts.
struct Verdict {
  std::string refusal;           ///< why the step is dropped; empty: it is applied
  bool finite = true;            ///< false: it is dropped for a gradient or sum that is not finite
  std::optional<double> norm;    ///< of the gradient, before clipping, where it had to be known
  double squares_elsewhere = 0;  ///< ‖g‖² of parameters that are not in the plan
  bool folded = false;           ///< each owner's arena holds the folded gradient of what it owns
  std::vector<double> scales;    ///< per parameter, of the gradient: clipping; empty: all 1
};

/// What the parts of a step know of it.
struct StepFacts {
  std::int64_t number = 1;      ///< counted from 1
  double loss_scale = 1;        ///< the gradients are so many times too large
  double rate_factor = 1;       ///< of the schedule
  std::uint64_t averaging = 0;  ///< digest of what an averaging policy decides; 0: there is none
  std::uint64_t active = 0;     ///< digest of the model that the step is about; 0: all parameters
  bool in_halves = false;       ///< this worker's program may look at it before it is applied
  bool divides = true;          ///< sums of gradients are divided by the weight of the step
  Verdict verdict = {};         ///< complete when all have judged
  std::vector<std::uint8_t> touched = {};  ///< per parameter; from commit() on
  StepReport report = {};                  ///< from commit() on, which may add to it
  /// From commit() on: logical workers whose part is dropped of a step that is applied.
  std::vector<std::int64_t> dropped_locally = {};
  bool shrank = false;        ///< from end() on: the loss scale, for gradients not finite
  bool ends_epoch = false;    ///< from end() on: its samples are the last ones of an epoch
  std::string diverged = {};  ///< from end() on: why the run has to end; empty: it need not
};

class StepPart {
 public:
  virtual ~StepPart() = default;

  /// Before the program computes.
  virtual void open(const StepFacts& /*step*/) {}
  /// This worker has computed its part: what the others are to read is written.
  virtual void publish() {}
  /// All have published. A part may refuse the step in its verdict, on all workers alike.
  virtual void judge(StepFacts& /*step*/) {}
  /// The step is applied: this worker's share of what changes, before the last wait.
  virtual void apply(const StepFacts& /*step*/) {}
  /// All have applied the step: what it decided counts.
  virtual void commit(StepFacts& /*step*/) {}
  /// The step is refused, or has failed: nothing of it counts.
  virtual void drop() noexcept {}
  /// The step is over, applied or refused, on all workers.
  virtual void end(StepFacts& /*step*/) {}

  // ---- between steps ----

  /// Other workers are about to read what commit() has changed: returns when all have changed
  /// theirs. Collective.
  virtual void settle() {}
  /// A checkpoint was loaded, from which the run continues. Collective.
  virtual void resume() {}
  /// Adds what the part sent in steps that counted, after what the parts before it sent. The part
  /// of the gradients' sources is the first that does, and counts steps.
  virtual void add_traffic(TrafficReport& /*report*/) const {}
};

/// The parts of a step, in the order of their calls.
class StepParts {
 public:
  /// Keeps a reference.
  void add(StepPart& part) { parts_.push_back(&part); }
  /// Makes a part, and owns it.
  template <class Part, class... Arguments>
  Part& add(Arguments&&... arguments) {
    auto part = std::make_unique<Part>(std::forward<Arguments>(arguments)...);
    auto& added = *part;
    add(added);
    own_.push_back(std::move(part));
    return added;
  }

  std::span<StepPart* const> list() const { return parts_; }

  void open(const StepFacts& step) const;
  void publish() const;
  void judge(StepFacts& step) const;
  /// Once all have judged: applies the step, or drops it where the verdict refuses it.
  void apply(const StepFacts& step) const;
  /// Once all workers have applied it, or dropped it: commits what was applied, and ends the step.
  void finish(StepFacts& step) const;
  void drop() const noexcept;
  void settle() const;
  void resume() const;
  TrafficReport traffic() const;

 private:
  std::vector<StepPart*> parts_;
  std::vector<std::unique_ptr<StepPart>> own_;  ///< some of them
};

}  // namespace tutti
