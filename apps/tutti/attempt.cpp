#include "attempt.h"

#include <fmt/format.h>
#include <algorithm>
#include <csignal>
#include <string>

#include "failure_report.h"
#include "job/broker.h"
#include "process_tree.h"
#include "refusal.h"
#include "supervisor.h"
#include "timeline_merge.h"

namespace tutti::command {
namespace {

// Ends what workers have left behind, also where not all could be started.
class LeftoversEnd {
 public:
  LeftoversEnd() = default;
  ~LeftoversEnd() { end_children({}, kEndOfLeftovers); }
  LeftoversEnd(const LeftoversEnd&) = delete;
  LeftoversEnd& operator=(const LeftoversEnd&) = delete;
};

std::vector<Worker> start_workers(const RunPlan& plan, int restart, Broker& broker,
                                  std::vector<WorkerOutput>& outputs) {
  std::vector<Worker> workers;
  workers.reserve(outputs.size());
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    const int end = broker.worker_end(static_cast<int>(rank));
    workers.push_back(
        {WorkerProcess::start(start_options(plan, rank, restart, end)), outputs[rank]});
    broker.close_worker_end(static_cast<int>(rank));
  }
  return workers;
}

void print(Output& output, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) output.line(Stream::error, "", line);
}

const Outcome& outcome_of(int rank, const std::vector<Outcome>& outcomes) {
  return *std::find_if(outcomes.begin(), outcomes.end(),
                       [&](const Outcome& outcome) { return outcome.rank == rank; });
}

AttemptEnd judge(const RunPlan& plan, int restart, const std::vector<Outcome>& outcomes,
                 const Broker& broker, std::vector<WorkerOutput>& outputs, Output& output) {
  const auto blames = broker.blames();
  const auto failed = first_failure(outcomes, blames);
  if (!failed) {
    if (plan.options.workers > 1 && !broker.any_joining())
      print(output, {strangers_note(plan.options.workers)});
    return {};
  }
  const int needed = needed_workers(plan.options);
  std::vector<Written> written;
  for (const WorkerOutput& of_worker : outputs) written.push_back(of_worker.written());
  if (have_finished(outcomes, needed)) {
    print(output, survivors_report(outcomes, blames, written));
    return {};
  }
  const Outcome& first = outcome_of(*failed, outcomes);
  print(output, failure_report(first.rank, outcomes, blames,
                               written[static_cast<std::size_t>(first.rank)], needed));
  const bool start_again = restart < plan.options.restarts;
  if (start_again) {
    const int next = restart + 1;
    print(output, {restart_line(next, plan.options.restarts)});
    const std::string line = restart_line_with_cause(first, next, plan.options.restarts);
    for (WorkerOutput& of_worker : outputs) of_worker.start_again(line);
  }
  return {.status = first.ending.exit_status(), .start_again = start_again};
}

// SIGPIPE stands for a reader that is gone, SIGKILL for a keeper that is.
int asked_for(int signal) { return signal == SIGPIPE || signal == SIGKILL ? 0 : signal; }

}  // namespace

AttemptEnd run_attempt(const RunPlan& plan, int restart, std::vector<WorkerOutput>& outputs,
                       Output& output, SignalInbox& signals) {
  // A timeline shows one attempt. What a failed one left must not pass for the next one's.
  if (restart > 0 && !plan.timeline.empty()) remove_timeline(plan.timeline, plan.options.workers);
  const LeftoversEnd leftovers;
  Broker broker(plan.options.workers);
  std::vector<Worker> workers = start_workers(plan, restart, broker, outputs);
  Supervisor supervisor(workers, needed_workers(plan.options), output, signals);
  supervisor.watch();
  AttemptEnd end;
  if (!supervisor.interrupted())
    end = judge(plan, restart, supervisor.outcomes(), broker, outputs, output);
  if (end.start_again) {
    supervisor.flush_ready();  // shows also whether the reader is gone
    supervisor.make_room();    // each attempt would add to what memory holds
  }
  if (!end.start_again || supervisor.interrupted()) supervisor.flush();
  if (const auto signal = supervisor.interrupted())
    return {.status = kSignalStatus + *signal, .interrupted_by = asked_for(*signal)};
  return end;
}

}  // namespace tutti::command
