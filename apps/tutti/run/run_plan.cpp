#include "apps/tutti/run/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/tutti/run/cpu_option.h"
#include "apps/tutti/run/find_program.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/run/processor_set.h"
#include "apps/tutti/run/timeline_merge.h"
#include "apps/tutti/run/worker_environment.h"
#include "apps/tutti/text/refusal.h"
#include "base/run_identity.h"
#include "base/system.h"
#include "tutti/environment.h"
#include "tutti/job.h"

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
  const int more_workers = std::min(processors / options.threads, kMaxWorkersPerHost);
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

// The hint that names variables of the user whose number of threads `tutti run` replaces.
std::string variables_hint(const RunOptions& options, const std::vector<std::string>& inherited) {
  if (options.threads_given) return {};
  std::vector<std::string> replaced;
  for (const std::string_view name : {"TUTTI_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"})
    for (const std::string& variable : inherited)
      if (variable.starts_with(fmt::format("{}=", name)) &&
          variable.substr(name.size() + 1) != std::to_string(options.threads))
        replaced.push_back(fmt::format("{} is {}", name, variable.substr(name.size() + 1)));
  if (replaced.empty()) return {};
  return fmt::format(
      "tutti run: hint: {} here, and {} for the workers, as --threads is not given: results depend "
      "on the number of threads",
      fmt::join(replaced, ", "), options.threads);
}

std::vector<std::string> hints_for(const RunPlan& plan) {
  std::vector<std::string> hints = {processor_hint(plan.options, host_system()->processors()),
                                    variables_hint(plan.options, plan.inherited),
                                    misplaced_hint(plan.options)};
  std::erase(hints, "");
  return hints;
}

// Follows symbolic links, also where the target does not exist yet: a file replaces the last link's
// target, not the link.
fs::path follow_links(fs::path file) {
  constexpr int kMaxLinks = 40;  // as the system has it
  std::error_code ignored;
  for (int links = 0; links < kMaxLinks && fs::is_symlink(file, ignored); ++links)
    file = file.parent_path() / fs::read_symlink(file, ignored);
  return file;
}

// Absolute, because workers may change their folder. Empty: no timeline.
std::string timeline_file(const RunOptions& options) {
  const std::string asked = options.profile.empty() ? Environment::read().profile : options.profile;
  if (asked.empty()) return {};
  const fs::path file = follow_links(fs::absolute(asked));
  std::error_code ignored;
  if (!fs::is_directory(file.parent_path(), ignored))
    throw Refusal(kUsageStatus,
                  fmt::format("--profile: there is no folder {}", file.parent_path().string()));
  if (fs::is_directory(file, ignored))
    throw Refusal(kUsageStatus, fmt::format("--profile: {} is a folder", file.string()));
  if (fs::exists(fs::symlink_status(file, ignored)) && !fs::is_regular_file(file, ignored))
    throw Refusal(kUsageStatus, fmt::format("--profile: {} is not a regular file", file.string()));
  return file.string();
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

/// Each worker takes the launcher some descriptors, and more while all exchange theirs: the usual
/// soft limit is for programs that use select(). Returns the limit as it was.
rlimit raise_descriptor_limit() {
  rlimit before{};
  if (getrlimit(RLIMIT_NOFILE, &before) != 0)
    throw Refusal(1, fmt::format("cannot read `ulimit -n`: {}", std::strerror(errno)));
  const rlimit raised{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);  // where it fails, later code that needs more reports it
  return before;
}

}  // namespace

std::string misplaced_hint(const RunOptions& options) {
  const std::string option = misplaced_option(options);
  if (option.empty()) return {};
  return fmt::format(
      "tutti run: hint: {} stands behind \"{}\", so the program gets it, and not tutti run, whose "
      "options stand before the program (\"--\" before the program says that this is meant)",
      option, options.program.front());
}

RunPlan make_plan(const RunOptions& options) {
  RunPlan plan;
  plan.options = options;
  plan.size = options.workers;
  if (options.host_index) {
    const auto hosts = parse_hosts(options.hosts);
    const HostEntry& own = hosts[static_cast<std::size_t>(*options.host_index)];
    plan.options.workers = own.workers;
    plan.first_rank = own.first_rank;
    plan.size = workers_of(hosts);
    std::vector<int> workers;
    for (const HostEntry& host : hosts) workers.push_back(host.workers);
    plan.hosts = fmt::format("{}", fmt::join(workers, ","));
  }
  plan.path = find_program(options.program.front());
  plan.run = options.host_run.empty() ? draw_run_identity() : options.host_run;
  plan.inherited = process_environment();
  plan.libraries = settings_for(options.cpu, read_processor(), plan.inherited);
  plan.timeline = timeline_file(options);
  const int workers = plan.options.workers;
  plan.processors.resize(static_cast<std::size_t>(workers));
  if (options.bind == "core") {
    const std::vector<int> allowed = host_system()->allowed_processors();
    for (int index = 0; index < workers; ++index)
      plan.processors[static_cast<std::size_t>(index)] =
          processor_mask(processors_of(index, workers, options.threads, allowed));
  }
  plan.descriptors = raise_descriptor_limit();
  if (plan.first_rank == 0) plan.hints = hints_for(plan);
  create_log_folder(options.log_folder);
  if (!plan.timeline.empty()) remove_timeline(plan.timeline, workers);
  return plan;
}

StartOptions start_options(const RunPlan& plan, std::size_t index, int restart, int rendezvous) {
  const RunOptions& options = plan.options;
  const WorkerEnvironment own{.rank = plan.first_rank + static_cast<int>(index),
                              .size = plan.size,
                              .threads = options.threads,
                              .restart = options.host_attempt + restart,
                              .rendezvous_fd = rendezvous,
                              .hosts = plan.hosts,
                              .run = plan.run,
                              .deadline = options.deadline ? fmt::to_string(*options.deadline) : "",
                              .profile = plan.timeline,
                              .libraries = plan.libraries,
                              .hub = plan.hub,
                              .interface = options.interface,
                              .link = options.link,
                              .lanes = options.lanes ? std::to_string(*options.lanes) : ""};
  return {.path = plan.path,
          .arguments = options.program,
          .environment = environment_of(own, plan.inherited),
          .inherited_fd = rendezvous,
          .processors = plan.processors[index],
          .descriptors = plan.descriptors};
}

std::string log_file(const RunPlan& plan, int rank) {
  const std::string& folder = plan.options.log_folder;
  return folder.empty() ? "" : (fs::path(folder) / fmt::format("rank-{}.log", rank)).string();
}

}  // namespace tutti::command
