#include "apps/tutti/run/hosts_run.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/tutti/run/failure_report.h"
#include "apps/tutti/run/host_environment.h"
#include "apps/tutti/run/host_record.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/run/process_tree.h"
#include "apps/tutti/run/remote_shell.h"
#include "apps/tutti/run/supervisor.h"
#include "apps/tutti/run/worker_environment.h"
#include "apps/tutti/text/refusal.h"
#include "base/run_identity.h"
#include "job/hosts/host_messages.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

/// A host's launcher takes its time to end its workers.
constexpr std::chrono::seconds kHostTermination{8};

class HostsAttempt {
 public:
  HostsAttempt(const RunOptions& options, const std::string& run, int attempt, Output& output)
      : options_(options),
        run_(run),
        attempt_(attempt),
        output_(output),
        hosts_(parse_hosts(options.hosts)),
        records_(hosts_.size()) {}

  RunEnd watch(SignalInbox& signals, bool& may_start_again);

 private:
  void start();
  StartOptions start_options(std::size_t host) const;
  std::vector<std::string> command(std::size_t host) const;
  bool take(std::size_t host, const std::string& line);
  std::string name_of(std::size_t host) const {
    return host_text(hosts_[host].name, hosts_[host].ranks());
  }
  std::optional<std::size_t> host_of(int rank) const;
  bool has_failed(const Outcome& outcome) const;
  bool any_failed() const {
    return std::ranges::any_of(records_, [](const auto& record) { return record.has_value(); });
  }
  int judge(const std::vector<Outcome>& outcomes);

  const RunOptions& options_;
  const std::string& run_;
  int attempt_;
  Output& output_;
  std::vector<HostEntry> hosts_;
  std::vector<std::string> variables_ =
      variables_for_hosts(options_.variables, process_environment());
  std::string token_ = draw_run_identity() + draw_run_identity();
  std::vector<WorkerOutput> outputs_;
  std::vector<Worker> launchers_;
  std::optional<Supervisor> supervisor_;
  std::vector<std::optional<HostRecord>> records_;  ///< of failures
  bool saves_ = false;                              ///< workers, asked to end, save what they have
};

/// What has to run on the host.
std::vector<std::string> HostsAttempt::command(std::size_t host) const {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "run",
                                    "--hosts",
                                    options_.hosts,
                                    "--host-index",
                                    std::to_string(host),
                                    "--host-run",
                                    run_,
                                    "--host-attempt",
                                    std::to_string(attempt_),
                                    "--threads",
                                    std::to_string(options_.threads),
                                    "--bind",
                                    options_.bind};
  const auto pass = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  pass("--port", options_.port == 0 ? "" : std::to_string(options_.port));
  pass("--interface", options_.interface);
  pass("--link", options_.link);
  pass("--lanes", options_.lanes ? std::to_string(*options_.lanes) : "");
  pass("--cpu", options_.cpu);
  pass("--deadline", options_.deadline ? fmt::to_string(*options_.deadline) : "");
  pass("--log", options_.log_folder);
  words.emplace_back("--");
  words.insert(words.end(), options_.program.begin(), options_.program.end());
  return words;
}

StartOptions HostsAttempt::start_options(std::size_t host) const {
  StartOptions start;
  start.environment = process_environment();
  start.input = text_of(HostInput{token_, variables_});
  getrlimit(RLIMIT_NOFILE, &start.descriptors);
  const auto words = command(host);
  if (hosts_[host].is_here()) {
    start.path = words.front();
    start.arguments = words;
    return start;
  }
  start.path = "/bin/sh";
  start.arguments = {"sh",
                     "-c",
                     fmt::format("exec {} \"$@\"", options_.ssh.empty() ? kSsh : options_.ssh),
                     "sh",
                     hosts_[host].name,
                     remote_line(words)};
  return start;
}

void HostsAttempt::start() {
  outputs_.reserve(hosts_.size());
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    outputs_.emplace_back(output_,
                          [this, host](const std::string& line) { return take(host, line); });
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    launchers_.push_back({WorkerProcess::start(start_options(host)), outputs_[host]});
}

/// True for a line that is not for the user.
bool HostsAttempt::take(std::size_t host, const std::string& line) {
  const auto record = read_record(line);
  if (!record) return false;
  if (record->saves) {
    saves_ = true;
    if (!any_failed()) supervisor_->wait_for_saves();
    return true;
  }
  if (record->rank >= 0) {
    // It may have to wait for the others before it ends itself: it has their connections.
    records_[host] = record;
    supervisor_->end_all();
    return true;
  }
  for (std::size_t other = 1; other < launchers_.size(); ++other)
    launchers_[other].process.write_input(fmt::format("{} {}\n", record->address, record->port));
  return true;
}

std::optional<std::size_t> HostsAttempt::host_of(int rank) const {
  for (std::size_t host = 0; host < hosts_.size(); ++host)
    if (rank >= hosts_[host].first_rank && rank < hosts_[host].first_rank + hosts_[host].workers)
      return host;
  return {};
}

bool HostsAttempt::has_failed(const Outcome& outcome) const {
  return outcome.failed() || records_[static_cast<std::size_t>(outcome.rank)].has_value();
}

/// The status of the run: that of the host whose failure explains the others'.
int HostsAttempt::judge(const std::vector<Outcome>& outcomes) {
  const Outcome* first = nullptr;
  for (const Outcome& outcome : outcomes) {
    if (!has_failed(outcome)) continue;
    const auto& record = records_[static_cast<std::size_t>(outcome.rank)];
    const auto culprit = record ? host_of(record->culprit) : std::nullopt;
    const bool is_echo = culprit && records_[*culprit];
    if (first == nullptr) first = &outcome;
    if (is_echo) continue;
    first = &outcome;
    break;
  }
  if (first == nullptr) return 0;
  const auto host = static_cast<std::size_t>(first->rank);
  const auto& record = records_[host];
  output_.line(Stream::error, "",
               record ? fmt::format("tutti run: rank {} on host {} failed first", record->rank,
                                    name_of(host))
                      : fmt::format("tutti run: host {} failed first: {}", name_of(host),
                                    first->ending.describe()));
  return record ? record->status : first->ending.exit_status();
}

RunEnd HostsAttempt::watch(SignalInbox& signals, bool& may_start_again) {
  start();
  supervisor_.emplace(
      launchers_,
      SupervisorOptions{.needed = static_cast<int>(hosts_.size()), .termination = kHostTermination},
      output_, signals);
  supervisor_->watch();
  const auto& outcomes = supervisor_->outcomes();
  const bool all_saved = have_saved(outcomes, static_cast<int>(hosts_.size())) && !any_failed();
  RunEnd end;
  if (all_saved) {
    output_.line(Stream::error, "", saved_line());
    end.status = kResumeStatus;
  } else if (const auto signal = supervisor_->interrupted();
             signal && !(saves_ && (all_succeeded(outcomes) || any_failed()))) {
    end.status = kSignalStatus + *signal;
    end.interrupted_by = *signal == SIGPIPE || *signal == SIGKILL ? 0 : *signal;
  } else {
    end.status = judge(outcomes);
  }
  may_start_again = !supervisor_->interrupted() && !all_saved && end.status != 0;
  supervisor_->flush();
  return end;
}

}  // namespace

RunEnd run_hosts(const RunOptions& options, Output& output, SignalInbox& signals) {
  const std::string run = draw_run_identity();
  for (int attempt = 0;; ++attempt) {
    bool may_start_again = false;
    const RunEnd end = HostsAttempt(options, run, attempt, output).watch(signals, may_start_again);
    end_children({}, kEndOfLeftovers);
    if (!may_start_again || attempt == options.restarts) return end;
    if (const auto signal = signals.next())
      return {.status = kSignalStatus + *signal, .interrupted_by = *signal};
    output.line(Stream::error, "", restart_line(attempt + 1, options.restarts));
  }
}

}  // namespace tutti::command
