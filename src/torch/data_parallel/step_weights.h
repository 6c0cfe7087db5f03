#pragma once

// How much this worker's losses count in the steps of a DataParallel: what the program tells, and
// what operations (tutti/ops.h) have found in the backwards of a step: the weight that they took,
// and why the step cannot be what the program meant.
//
// Threads: that of the DataParallel. Failure: publish() throws InvalidArgument.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "sync/step/step_part.h"
#include "sync/step/step_protocol.h"

namespace tutti {

class StepWeights : public StepPart {
 public:
  /// Keeps a reference.
  explicit StepWeights(const StepProtocol& protocol) : protocol_(protocol) {}

  // ---- told by the program ----

  /// Of the next backward outside of a scope.
  void set_next(double weight) { next_ = weight; }
  double next() const { return next_; }
  /// The next backward opens its step, or none comes to it and `asked` may be its weight.
  double take_next(const std::optional<double>& asked = {}) {
    return current_ = asked.value_or(std::exchange(next_, 1.0));
  }
  /// Of the backwards that come, or run.
  void set_current(double weight) { current_ = weight; }
  double current() const { return current_; }

  // ---- heard by operations ----

  /// Outside of an accumulation scope: an operation carried gradients of the current loss.
  void carried() { of_this().weight = current_; }
  /// The first one counts.
  void refuse(const std::string& why);
  /// An operation gave something to workers whose losses may have a gradient of it.
  void owe(const std::string& operation) { of_this().owed_by = operation; }
  const std::string& owed_by() { return of_this().owed_by; }
  /// Each leaf of a scope has a weight of its own.
  void open_scope() { of_this().weight.reset(); }
  void begin_leaf(double weight) {
    current_ = weight;
    of_this().owed_by.clear();
  }
  /// Throws where operations did not carry gradients by the weight that counts in the open step, or
  /// could not.
  void publish() override;

 private:
  struct OfStep {
    std::int64_t step = -1;
    std::optional<double> weight = {};
    std::string refusal = {};
    std::string owed_by = {};  ///< the operation
  };
  /// What belongs to the open step, or to the next one where none is open.
  OfStep& of_this();

  const StepProtocol& protocol_;
  double next_ = 1;
  double current_ = 1;
  OfStep of_step_;
};

}  // namespace tutti
