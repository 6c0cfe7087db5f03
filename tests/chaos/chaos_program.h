#pragma once

// What a worker of a case does: collectives and steps whose results are compared with a scalar
// model.
//
// Threads: one per worker. Failure: what Tutti throws.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "chaos/chaos_case.h"
#include "sync/gradient_oracle.h"
#include "tutti/job.h"

namespace tutti::test::chaos {

/// A step's leaves, and what it must give.
struct ModelStep {
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  Leaf expected;
};

/// What workers of this process share of the model: each step is made once.
class ModelSteps {
 public:
  const ModelStep& get(std::uint64_t key, const std::function<ModelStep()>& make);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<ModelStep>> steps_;
};

struct Reports {
  std::function<void(const std::string&)> wrong;  ///< bytes are
  std::function<void()> chance;                   ///< see ChaosWorld
};

/// Runs the operations of the case as this worker.
void run_operations(const ChaosCase& one, const Job& job, ModelSteps& model,
                    const Reports& reports);

/// Makes the parts of the model that are the same in all cases, before processes are forked.
void prepare_model();

}  // namespace tutti::test::chaos
