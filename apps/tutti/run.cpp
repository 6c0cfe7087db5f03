#include "run.h"

#include <fmt/format.h>
#include <poll.h>
#include <array>
#include <exception>
#include <string>
#include <vector>

#include "attempt.h"
#include "descriptors.h"
#include "keeper.h"
#include "refusal.h"
#include "run_plan.h"
#include "timeline_merge.h"

namespace tutti::command {
namespace {

int run_attempts(const RunPlan& plan, std::vector<WorkerOutput>& outputs, Output& output,
                 SignalInbox& signals) {
  for (int restart = 0;; ++restart) {
    const AttemptEnd end = run_attempt(plan, restart, outputs, output, signals);
    if (!end.start_again) return end.status;
    // Who asks for the end while no worker runs must not see new ones start.
    if (const auto signal = signals.next()) return kSignalStatus + *signal;
  }
}

void flush(Output& output, SignalInbox& signals) {
  while (!output.empty() && !signals.next()) {
    std::array<pollfd, 2> polled = {
        {{signals.descriptor(), POLLIN, 0}, {output.next_descriptor(), POLLOUT, 0}}};
    if (poll(polled.data(), polled.size(), -1) > 0 && polled[1].revents != 0) output.write_some();
  }
}

// Comes last: a file of any size must not keep a user from the report, nor change the status.
void merge_timeline(const RunPlan& plan, Output& output, SignalInbox& signals) {
  if (plan.timeline.empty()) return;
  std::vector<std::string> problems;
  try {
    problems = merge_timeline_files(plan.timeline, plan.options.workers,
                                    [&] { return signals.next() || signals.abandoned(); });
  } catch (const std::exception& error) {
    problems.push_back(error.what());
  }
  for (const std::string& problem : problems)
    output.line(Stream::error, "", fmt::format("tutti run: {}", problem));
  flush(output, signals);
}

}  // namespace

int run(const RunOptions& options) {
  const KeptLauncher kept = KeptLauncher::start();
  if (kept.ended()) return *kept.ended();
  close_inherited_on_exec();
  const RunPlan plan = make_plan(options);
  const Terminals terminals = Terminals::of_process();
  Output output(terminals);
  SignalInbox signals;  // before there are threads
  std::vector<WorkerOutput> outputs;
  outputs.reserve(static_cast<std::size_t>(options.workers));
  for (int rank = 0; rank < options.workers; ++rank)
    outputs.emplace_back(output, terminals, rank, options.workers, log_file(plan, rank));
  if (!plan.hint.empty()) output.line(Stream::error, "", plan.hint);
  const int status = run_attempts(plan, outputs, output, signals);
  kept.settle(status);
  merge_timeline(plan, output, signals);
  return status;
}

}  // namespace tutti::command
