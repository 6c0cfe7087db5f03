#pragma once

// What operations (tutti/ops.h) have found in the backwards of a step: the weight that they took,
// and why the step cannot be what the program meant.
//
// Threads: that of the DataParallel. Failure: require() throws InvalidArgument.

#include <cstdint>
#include <optional>
#include <string>

#include "sync/step/step_protocol.h"

namespace tutti {

class HeardWeights {
 public:
  /// Keeps a reference.
  explicit HeardWeights(const StepProtocol& protocol) : protocol_(protocol) {}

  /// Outside of an accumulation scope: an operation carried gradients of a loss of this weight.
  void carried(double weight) { current().weight = weight; }
  /// The first one counts.
  void refuse(const std::string& why);
  /// An operation gave something to workers whose losses may have a gradient of it.
  void owe(const std::string& operation) { current().owed_by = operation; }
  const std::string& owed_by() { return current().owed_by; }
  /// Each leaf of a scope has a weight of its own.
  void open_scope() { current().weight.reset(); }
  void begin_leaf() { current().owed_by.clear(); }
  /// Throws where operations did not carry gradients by the weight that counts in the open step, or
  /// could not.
  void require(double weight) const;

 private:
  struct OfStep {
    std::int64_t step = -1;
    std::optional<double> weight = {};
    std::string refusal = {};
    std::string owed_by = {};  ///< the operation
  };
  /// What belongs to the open step, or to the next one where none is open.
  OfStep& current();

  const StepProtocol& protocol_;
  OfStep of_step_;
};

}  // namespace tutti
