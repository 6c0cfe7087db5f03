#include "apps/tutti/run/run.h"

#include <fmt/format.h>
#include <csignal>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/tutti/run/attempt.h"
#include "apps/tutti/run/descriptors.h"
#include "apps/tutti/run/host_environment.h"
#include "apps/tutti/run/host_launcher.h"
#include "apps/tutti/run/hosts_run.h"
#include "apps/tutti/run/keeper.h"
#include "apps/tutti/run/run_plan.h"
#include "apps/tutti/run/supervisor.h"
#include "apps/tutti/run/timeline_merge.h"
#include "apps/tutti/text/refusal.h"

namespace tutti::command {
namespace {

/// Where no worker runs.
void flush(Output& output, SignalInbox& signals, std::optional<int> interrupted) {
  if (signals.abandoned()) return;
  std::vector<Worker> none;
  Supervisor(none, {.interrupted = interrupted}, output, signals).flush();
}

RunEnd run_attempts(const RunPlan& plan, ConnectedHosts hosts, std::vector<WorkerOutput>& outputs,
                    Output& output, SignalInbox& signals) {
  for (int restart = 0;; ++restart) {  // where there are hosts, none: they start again together
    const AttemptEnd end =
        run_attempt(plan, std::exchange(hosts, {}), restart, outputs, output, signals);
    if (!end.start_again) return {.status = end.status, .interrupted_by = end.interrupted_by};
    // A request for the end while no worker runs must not be followed by new ones.
    if (const auto signal = signals.next()) {
      if (signals.abandoned()) return {.status = kSignalStatus + SIGKILL};
      flush(output, signals, signal);
      return {.status = kSignalStatus + *signal, .interrupted_by = *signal};
    }
  }
}

// Comes last: a file of any size must not keep a user from the report, nor change the status.
void merge_timeline(const RunPlan& plan, Output& output, SignalInbox& signals, const RunEnd& end) {
  if (plan.timeline.empty()) return;
  std::vector<std::string> problems;
  try {
    problems = merge_timeline_files(plan.timeline, plan.options.workers,
                                    [&] { return signals.next() || signals.abandoned(); });
  } catch (const std::exception& error) {
    problems.emplace_back(error.what());
  }
  if (problems.empty()) return;
  for (const std::string& problem : problems)
    output.line(Stream::error, "", fmt::format("tutti run: {}", problem));
  flush(output, signals,
        end.interrupted_by == 0 ? std::nullopt : std::optional(end.interrupted_by));
}

}  // namespace

int run(const RunOptions& options) {
  const Kept kept = start_launcher();
  close_inherited_on_exec();
  if (!options.hosts.empty() && !options.host_index) {
    Output output;
    SignalInbox signals(kept.keeper);
    if (const std::string hint = misplaced_hint(options); !hint.empty())
      output.line(Stream::error, "", hint);
    const RunEnd end = run_hosts(options, output, signals);
    kept.settle(end);
    return end.status;
  }
  HostInput input;
  if (options.host_index) {
    auto read = read_host_input();
    if (!read) return kSignalStatus + SIGTERM;
    input = std::move(*read);
    set_variables(input.variables);
  }
  RunPlan plan = make_plan(options);
  Output output;
  SignalInbox signals(kept.keeper);  // before there are threads
  const int workers = plan.options.workers;
  std::vector<WorkerOutput> outputs;
  outputs.reserve(static_cast<std::size_t>(workers));
  for (int rank = plan.first_rank; rank < plan.first_rank + workers; ++rank)
    outputs.emplace_back(output, rank, plan.size, log_file(plan, rank));
  for (const std::string& hint : plan.hints) output.line(Stream::error, "", hint);
  try {
    ConnectedHosts hosts;
    if (options.host_index) {
      auto joined = join_hosts(plan, input.token, signals);
      if (!joined.hosts) return kSignalStatus + joined.interrupted_by;
      hosts = std::move(*joined.hosts);
      plan.hub = joined.hub;
    }
    const RunEnd end = run_attempts(plan, std::move(hosts), outputs, output, signals);
    kept.settle(end);
    merge_timeline(plan, output, signals, end);
    return end.status;
  } catch (const std::exception&) {
    flush(output, signals, {});  // what earlier attempts have left
    throw;
  }
}

}  // namespace tutti::command
