#include "run.h"

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/system.h"
#include "find_program.h"
#include "group_guard.h"
#include "job/broker.h"
#include "processor_set.h"
#include "refusal.h"
#include "supervisor.h"
#include "timeline_merge.h"
#include "tutti/environment.h"
#include "tutti/job.h"
#include "worker_environment.h"

namespace tutti::command {
namespace {

namespace fs = std::filesystem;

std::string plural(int count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

// Results depend on the threads of a worker: they are never changed silently, only talked about.
std::string processor_hint(const RunOptions& options, int processors) {
  const int used = options.workers * options.threads;
  const std::string what = fmt::format("{} with {} each", plural(options.workers, "worker"),
                                       plural(options.threads, "thread"));
  if (used > processors)
    return fmt::format("tutti run: hint: {} share {}: they wait for each other", what,
                       plural(processors, "processor"));
  if (used == processors) return {};
  const int more_threads = processors / options.workers;
  const int more_workers = std::min(processors / options.threads, kMaxWorkers);
  std::string advice = "the rest is too few for another thread each";
  if (more_threads > options.threads) {
    advice = fmt::format(
        "--threads {} would use {}; results depend on --threads, so it is never changed by itself",
        more_threads, more_threads * options.workers == processors ? "all" : "more");
  } else if (more_workers > options.workers) {
    advice = fmt::format("-n {} would use {}", more_workers,
                         more_workers * options.threads == processors ? "all" : "more");
  }
  return fmt::format("tutti run: hint: {} use {} of {}; {}", what, used,
                     plural(processors, "processor"), advice);
}

// Absolute, because workers may change their folder. Empty: no timeline.
std::string timeline_file(const RunOptions& options) {
  const std::string asked = options.profile.empty() ? Environment::read().profile : options.profile;
  if (asked.empty()) return {};
  const fs::path file = fs::absolute(asked);
  if (!fs::is_directory(file.parent_path()))
    throw Refusal(kUsageStatus,
                  fmt::format("--profile: there is no folder {}", file.parent_path().string()));
  if (fs::is_directory(file))
    throw Refusal(kUsageStatus, fmt::format("--profile: {} is a folder", file.string()));
  return file.string();
}

std::string log_file(const std::string& folder, std::size_t rank) {
  return folder.empty() ? "" : (fs::path(folder) / fmt::format("rank-{}.log", rank)).string();
}

void create_log_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure || !fs::is_directory(folder))
    throw Refusal(kUsageStatus,
                  fmt::format("--log: cannot create the folder {}: {}", folder,
                              failure ? failure.message() : "something else is there"));
}

// Everything about the workers that is settled before the first starts.
struct Plan {
  std::string path;
  std::vector<std::string> inherited;
  std::vector<std::vector<unsigned long>> processors;  // per rank; empty: anywhere
  std::string timeline;
  std::string hint;
};

Plan make_plan(const RunOptions& options) {
  Plan plan;
  plan.path = find_program(options.program.front());
  plan.inherited = process_environment();
  plan.timeline = timeline_file(options);
  plan.processors.resize(static_cast<std::size_t>(options.workers));
  if (options.bind == "core") {
    const std::vector<int> allowed = host_system()->allowed_processors();
    for (int rank = 0; rank < options.workers; ++rank)
      plan.processors[static_cast<std::size_t>(rank)] =
          processor_mask(processors_of(rank, options.workers, options.threads, allowed));
  }
  plan.hint = processor_hint(options, host_system()->processors());
  create_log_folder(options.log_folder);
  if (!plan.timeline.empty()) remove_timeline_parts(plan.timeline, options.workers);
  return plan;
}

StartOptions start_options(const Plan& plan, const RunOptions& options, std::size_t rank,
                           int rendezvous) {
  const WorkerEnvironment own{
      .rank = static_cast<int>(rank),
      .size = options.workers,
      .threads = options.threads,
      .rendezvous_fd = rendezvous,
      .deadline = options.deadline_given ? fmt::to_string(options.deadline) : "",
      .profile = plan.timeline};
  return {.path = plan.path,
          .arguments = options.program,
          .environment = environment_of(own, plan.inherited),
          .inherited_fd = rendezvous,
          .processors = plan.processors[rank]};
}

void queue_report(Output& output, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) output.line(Stream::error, "", line);
}

}  // namespace

int run(const RunOptions& options) {
  const Plan plan = make_plan(options);
  const Terminals terminals = Terminals::of_process();
  Output output(terminals);

  SignalInbox signals;                           // before there are threads
  const GroupGuard guard = GroupGuard::start();  // likewise
  Broker broker(options.workers);
  std::vector<Worker> workers;
  const auto size = static_cast<std::size_t>(options.workers);
  workers.reserve(size);
  std::vector<WorkerOutput> outputs;
  for (std::size_t rank = 0; rank < size; ++rank)
    outputs.emplace_back(output, terminals, static_cast<int>(rank), options.workers,
                         log_file(options.log_folder, rank));
  if (!plan.hint.empty()) output.line(Stream::error, "", plan.hint);
  for (std::size_t rank = 0; rank < size; ++rank) {
    const int end = broker.worker_end(static_cast<int>(rank));
    workers.push_back(
        {WorkerProcess::start(start_options(plan, options, rank, end)), std::move(outputs[rank])});
    guard.watch(workers.back().process.pid());
    broker.close_worker_end(static_cast<int>(rank));
  }

  Supervisor supervisor(workers, output, signals);
  supervisor.watch();
  if (!plan.timeline.empty())
    for (const std::string& problem : merge_timeline_files(plan.timeline, options.workers))
      output.line(Stream::error, "", "tutti run: " + problem);
  const auto blames = broker.blames();
  const auto failed = first_failure(supervisor.outcomes(), blames);
  if (failed && !supervisor.interrupted())
    queue_report(output,
                 failure_report(*failed, supervisor.outcomes(), blames,
                                workers[static_cast<std::size_t>(*failed)].output.last_lines()));
  supervisor.flush();

  if (const auto signal = supervisor.interrupted()) return kSignalStatus + *signal;
  if (!failed) return 0;
  for (const Outcome& outcome : supervisor.outcomes())
    if (outcome.rank == *failed) return outcome.ending.exit_status();
  return 1;
}

}  // namespace tutti::command
