#include "apps/tutti/run/attempt.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <string>

#include "apps/tutti/run/failure_report.h"
#include "apps/tutti/run/host_record.h"
#include "apps/tutti/run/process_tree.h"
#include "apps/tutti/run/supervisor.h"
#include "apps/tutti/run/timeline_merge.h"
#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/say.h"
#include "job/hosts/broker_hosts.h"
#include "job/rendezvous/broker.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

// Ends what workers have left behind, also where not all could be started.
class LeftoversEnd {
 public:
  LeftoversEnd() = default;
  ~LeftoversEnd() {
    if (end_children({}, kEndOfLeftovers).empty() && waitpid(-1, nullptr, WNOHANG) == 0)
      say("tutti run: what workers have started still runs; it is not ended, because /proc, which "
          "would show it, is missing here");
  }
  LeftoversEnd(const LeftoversEnd&) = delete;
  LeftoversEnd& operator=(const LeftoversEnd&) = delete;
};

Broker make_broker(const RunPlan& plan, ConnectedHosts hosts) {
  if (hosts.hosts.empty()) return Broker(plan.options.workers);
  return Broker(broker_hosts(std::move(hosts), plan.first_rank));
}

std::vector<Worker> start_workers(const RunPlan& plan, int restart, Broker& broker,
                                  std::vector<WorkerOutput>& outputs) {
  std::vector<Worker> workers;
  workers.reserve(outputs.size());
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    const int rank = plan.first_rank + static_cast<int>(index);
    const int end = broker.worker_end(rank);
    workers.push_back(
        {WorkerProcess::start(start_options(plan, index, restart, end)), outputs[index]});
    broker.close_worker_end(rank);
  }
  return workers;
}

std::function<std::string()> join_note_of(const RunPlan& plan, const Broker& broker) {
  if (plan.options.workers == 1) return {};
  return [&plan, &broker] {
    return broker.any_joining()
               ? std::string()
               : nobody_joined_note(plan.options.workers, plan.options.join_notice);
  };
}

void print(Output& output, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) output.line(Stream::error, "", line);
}

const Outcome& outcome_of(int rank, const std::vector<Outcome>& outcomes) {
  return *std::find_if(outcomes.begin(), outcomes.end(),
                       [&](const Outcome& outcome) { return outcome.rank == rank; });
}

std::optional<int> culprit_elsewhere(const RunPlan& plan, int rank,
                                     const std::vector<Blame>& blames) {
  const int end = plan.first_rank + plan.options.workers;
  for (const Blame& blame : blames)
    if (blame.rank == rank && (blame.culprit < plan.first_rank || blame.culprit >= end))
      return blame.culprit;
  return {};
}

AttemptEnd judge(const RunPlan& plan, int restart, bool may_start_again,
                 const std::vector<Outcome>& outcomes, const Broker& broker,
                 std::vector<WorkerOutput>& outputs, Output& output) {
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
                               written[static_cast<std::size_t>(first.rank - plan.first_rank)],
                               needed, plan.size));
  if (plan.options.host_index)
    print(
        output,
        {text_of(HostRecord{.rank = first.rank,
                            .status = first.ending.exit_status(),
                            .culprit = culprit_elsewhere(plan, first.rank, blames).value_or(-1)})});
  const bool start_again = may_start_again && restart < plan.options.restarts;
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

AttemptEnd run_attempt(const RunPlan& plan, ConnectedHosts hosts, int restart,
                       std::vector<WorkerOutput>& outputs, Output& output, SignalInbox& signals) {
  // A timeline shows one attempt. What a failed one left must not pass for the next one's.
  if (restart > 0 && !plan.timeline.empty()) remove_timeline(plan.timeline, plan.options.workers);
  const LeftoversEnd leftovers;
  Broker broker = make_broker(plan, std::move(hosts));
  std::vector<Worker> workers = start_workers(plan, restart, broker, outputs);
  Supervisor supervisor(
      workers,
      {.needed = needed_workers(plan.options),
       .first_rank = plan.first_rank,
       .of_host = plan.options.host_index.has_value(),
       .saves = [&broker] { return broker.any_saves(); },
       .on_saving =
           [&] {
             if (plan.options.host_index) print(output, {text_of(HostRecord{.saves = true})});
           },
       .join_note = join_note_of(plan, broker),
       .join_notice = std::chrono::milliseconds(std::llround(plan.options.join_notice * 1000))},
      output, signals);
  supervisor.watch();
  if (broker.any_saves() && have_saved(supervisor.outcomes(), needed_workers(plan.options))) {
    if (!plan.options.host_index) print(output, {saved_line()});
    supervisor.flush();
    return {.status = kResumeStatus};
  }
  // Workers that were asked to save end by themselves: what they have is complete, or has failed.
  const bool are_asked = supervisor.saves();
  AttemptEnd end;
  if (are_asked || !supervisor.interrupted())
    end = judge(plan, restart, !are_asked, supervisor.outcomes(), broker, outputs, output);
  if (end.start_again) {
    supervisor.flush_ready();  // shows also whether the reader is gone
    supervisor.make_room();    // each attempt would add to what memory holds
  }
  if (!end.start_again || supervisor.interrupted()) supervisor.flush();
  if (const auto signal = supervisor.interrupted(); signal && !are_asked)
    return {.status = kSignalStatus + *signal, .interrupted_by = asked_for(*signal)};
  return end;
}

}  // namespace tutti::command
