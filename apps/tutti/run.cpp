#include "run.h"

#include <vector>

#include "attempt.h"
#include "refusal.h"
#include "run_plan.h"

namespace tutti::command {

int run(const RunOptions& options) {
  const RunPlan plan = make_plan(options);
  const Terminals terminals = Terminals::of_process();
  Output output(terminals);
  SignalInbox signals;  // before there are threads
  std::vector<WorkerOutput> outputs;
  outputs.reserve(static_cast<std::size_t>(options.workers));
  for (int rank = 0; rank < options.workers; ++rank)
    outputs.emplace_back(output, terminals, rank, options.workers, log_file(plan, rank));
  if (!plan.hint.empty()) output.line(Stream::error, "", plan.hint);

  for (int restart = 0;; ++restart) {
    const AttemptEnd end = run_attempt(plan, restart, outputs, output, signals);
    if (!end.start_again) return end.status;
    // Who asks for the end while no worker runs must not see new ones start.
    if (const auto signal = signals.next()) return kSignalStatus + *signal;
  }
}

}  // namespace tutti::command
