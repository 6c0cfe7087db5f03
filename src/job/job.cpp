#include "tutti/job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <numeric>

#include <fmt/format.h>

#include "base/log.h"
#include "base/run_identity.h"
#include "base/standard_output.h"
#include "base/system.h"
#include "environment/gpu_driver.h"
#include "job/alone.h"
#include "job/end_request.h"
#include "job/gather.h"
#include "job/hosts/broker_hosts.h"
#include "job/hosts/host_connections.h"
#include "job/hosts/hub_settings.h"
#include "job/hosts/tcp_socket.h"
#include "job/job_state.h"
#include "job/life/launcher_process.h"
#include "job/mpi_start.h"
#include "job/publish.h"
#include "job/rendezvous/host_rendezvous.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "job/rendezvous/thread_rendezvous.h"
#include "job/wire/rank_set.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void require_all_or_none(const Environment& environment) {
  const std::pair<const char*, bool> needed[] = {
      {"TUTTI_RANK", environment.rank.has_value()},
      {"TUTTI_SIZE", environment.size.has_value()},
      {"TUTTI_RUN", !environment.run.empty()},
      {"TUTTI_RENDEZVOUS_FD", environment.rendezvous_fd.has_value()}};
  for (const auto& [absent, has] : needed)
    for (const auto& [present, has_other] : needed)
      if (!has && has_other)
        throw InvalidArgument(
            fmt::format("{} is not set although {} is: `tutti run` sets both", absent, present));
  if (environment.restart && !environment.rank)
    throw InvalidArgument("TUTTI_RANK is not set although TUTTI_RESTART is: `tutti run` sets both");
}

/// The inherited socket, taken once. Its number may belong to a file of the program by now, which
/// must stay as it is: after an earlier join(), or in a process that inherited the variables alone.
/// The second mark of a socket that was taken is its close-on-exec flag, which `tutti run` had to
/// clear.
FileDescriptor take_socket(int fd) {
  static std::atomic<pid_t> joined{0};
  const auto taken = [&] {
    return InvalidArgument(
        fmt::format("TUTTI_RENDEZVOUS_FD is {}, which is taken: a process joins its job "
                    "once; copy the Job instead",
                    fd));
  };
  if (joined.load() == ::getpid()) throw taken();
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags < 0)
    throw InvalidArgument(
        fmt::format("TUTTI_RENDEZVOUS_FD is {}, which is not open. Either a program between `tutti "
                    "run` and this one closes what it inherits (sudo, Python's subprocess): keep "
                    "the descriptor open (close_fds=False), or start `tutti run` inside of it. Or "
                    "this process is no worker, and was started by one: remove the variables that "
                    "begin with TUTTI_ from its environment",
                    fd));
  if ((flags & FD_CLOEXEC) != 0) throw taken();
  require_own_stream(fd);
  ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  joined = ::getpid();
  return FileDescriptor(fd);
}

struct Joining {
  Identity identity;
  std::shared_ptr<Rendezvous> rendezvous;
};

Joining join_alone(const Environment& environment) {
  set_log_rank(0, 1);
  log().info("no launcher: a group of one");
  return {{.threads = environment.threads.value_or(1),
           .run = draw_run_identity(),
           .sets_threads = environment.threads.has_value()},
          ThreadRendezvous().rendezvous(0)};
}

/// The hosts of `tutti run --hosts`, whose ranks follow one another.
std::optional<HostMap> hosts_of(const Environment& environment) {
  std::vector<RankSet> hosts;
  int rank = 0;
  for (const int workers : environment.hosts) {
    RankSet& host = hosts.emplace_back();
    for (int i = 0; i < workers && rank < *environment.size; ++i) host.insert(rank++);
  }
  if (hosts.empty()) return {};
  const auto told = std::accumulate(environment.hosts.begin(), environment.hosts.end(), 0L);
  if (told != *environment.size)
    throw InvalidArgument(
        fmt::format("TUTTI_HOSTS has {} workers, TUTTI_SIZE is {}", told, *environment.size));
  for (std::size_t host = 0; host < hosts.size(); ++host)
    if (environment.hosts[host] > kMaxWorkersPerHost)
      throw InvalidArgument(fmt::format("TUTTI_HOSTS has {} workers on host {}: must be 1 to {}",
                                        environment.hosts[host], host, kMaxWorkersPerHost));
  return HostMap::of(hosts);
}

Joining join_by_tutti_run(const Environment& environment) {
  Identity identity{.rank = *environment.rank,
                    .size = *environment.size,
                    .threads = environment.threads.value_or(1),
                    .restarts = environment.restart.value_or(0),
                    .run = environment.run};
  if (identity.size > kMaxWorkers)
    throw InvalidArgument(
        fmt::format("TUTTI_SIZE is {}: must be 1 to {}", identity.size, kMaxWorkers));
  if (environment.hosts.empty() && identity.size > kMaxWorkersPerHost)
    throw InvalidArgument(
        fmt::format("TUTTI_SIZE is {}: on one host it must be 1 to {}, and TUTTI_HOSTS, which "
                    "would tell of others, is not set",
                    identity.size, kMaxWorkersPerHost));
  if (identity.rank >= identity.size)
    throw InvalidArgument(fmt::format("TUTTI_RANK is {}: must be 0 to {}, as TUTTI_SIZE is {}",
                                      identity.rank, identity.size - 1, identity.size));
  identity.hosts = hosts_of(environment);
  set_log_rank(identity.rank, identity.size);
  print_whole_lines_at_once();
  return {identity,
          connect_to_broker(take_socket(*environment.rendezvous_fd), identity.rank, identity.size)};
}

/// The ranks on this host: as the launcher tells, else those around this one, which is where
/// launchers put them by default. The hub refuses what does not fit together.
std::vector<int> ranks_here(const Environment::Launcher& launcher) {
  if (!launcher.host_ranks.empty()) return launcher.host_ranks;
  if (!launcher.on_host || *launcher.on_host == launcher.size) {
    return RankSet::below(launcher.size).ranks();
  }
  if (!launcher.rank_on_host || *launcher.rank_on_host > launcher.rank) {
    throw Unsupported(
        fmt::format("{} has started workers on several hosts and does not tell which "
                    "of them are on this one",
                    launcher.name));
  }
  std::vector<int> ranks(static_cast<std::size_t>(*launcher.on_host));
  std::iota(ranks.begin(), ranks.end(), launcher.rank - *launcher.rank_on_host);
  return ranks;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

HubListener listen(const HubSettings& settings) {
  try {
    return {settings.hub.address, settings.hub.port};
  } catch (const IoError& error) {
    if (error.code() != EADDRINUSE || settings.advice.empty()) throw;
    throw IoError(error.code(), fmt::format("{}; {}", error.what(), settings.advice));
  }
}

/// Connects the first worker of a host with those of the others.
BrokerHosts connect_hosts(const HubSettings& settings, const HostIntroduction& own,
                          Deadline deadline) {
  const int first = own.ranks.front();
  if (first != 0) return broker_hosts(connect_to_hub(settings.hub, own, deadline), first);
  log().info("hosts meet at {} ({})", tcp_text(settings.hub.address, settings.hub.port),
             settings.choice);
  auto listener = listen(settings);
  return broker_hosts(listener.accept_all(own, deadline), first);
}

/// Workers of another launcher find one another by what it is: its process, and its name for the
/// job, because one process may start several.
Joining join_by(const Environment::Launcher& launcher, const Environment& environment,
                std::chrono::milliseconds join_deadline) {
  if (launcher.size > kMaxWorkers)
    throw InvalidArgument(fmt::format("{} has started {} workers: must be 1 to {}", launcher.name,
                                      launcher.size, kMaxWorkers));
  const auto here = ranks_here(launcher);
  if (here.size() > kMaxWorkersPerHost)
    throw InvalidArgument(fmt::format("{} has started {} workers on {}: must be 1 to {}",
                                      launcher.name, here.size(), host_name(), kMaxWorkersPerHost));
  const auto process = find_launcher_process("/", launcher.rank_variable);
  const auto run = fmt::format("{} job {}", process.identity, launcher.job);
  Identity identity{.rank = launcher.rank,
                    .size = launcher.size,
                    .threads = environment.threads.value_or(launcher.threads.value_or(1)),
                    .restarts = launcher.restart,
                    .run = derive_run_identity(run),
                    .sets_threads = environment.threads || !launcher.threads};
  set_log_rank(identity.rank, identity.size);
  print_whole_lines_at_once();
  if (identity.rank == 0)
    log().info("{} has started {} workers{}, threads each: {}", launcher.name, identity.size,
               launcher.on_host.value_or(identity.size) == identity.size
                   ? " on this host"
                   : fmt::format(", {} of them on this host", *launcher.on_host),
               identity.threads);
  HostWorkers workers{
      .name = "tutti/" + derive_run_identity(fmt::format("{} attempt {}", run, identity.restarts)),
      .launcher = fmt::format("{} (process {})", launcher.name, process.number),
      .rank = identity.rank,
      .size = identity.size,
      .first = here.front(),
      .here = static_cast<int>(here.size())};
  const auto deadline = Deadline::after(Clock::now(), join_deadline);
  if (static_cast<int>(here.size()) < identity.size) {
    // The launcher's processes differ from host to host: the run is that of the hub's.
    const HubSettings settings = hub_of(environment);
    workers.connect = [=] {
      return connect_hosts(settings,
                           {.run = here.front() == 0 ? identity.run : std::string(),
                            .token = settings.token,
                            .name = host_name(),
                            .size = identity.size,
                            .ranks = here,
                            .attempt = identity.restarts,
                            .facts = facts_of_hosts()},
                           deadline);
    };
  }
  auto [rendezvous, hosts, run_of_hosts] = join_host(workers, deadline);
  identity.hosts = std::move(hosts);
  if (!run_of_hosts.empty()) identity.run = std::move(run_of_hosts);
  return {std::move(identity), std::move(rendezvous)};
}

void show_longest(JobState& job, const JobState::BusyPeriods& busy) {
  WorkerSlot& mine = job.slot(job.identity().rank);
  const auto longest =
      std::ranges::max_element(busy.all, {}, &JobState::BusyPeriods::Period::until);
  const bool is_none = longest == busy.all.end();
  publish_text(job, mine.busy_what, is_none ? std::string_view() : longest->what);
  publish_time(job, mine.busy_until, is_none ? Clock::time_point() : longest->until);
}

}  // namespace

Busy::Busy(std::shared_ptr<JobState> job, std::string what, std::chrono::milliseconds at_most)
    : job_(std::move(job)) {
  job_->require_own();
  require_positive(at_most, "the time a worker may be busy");
  const auto until = job_->deadline(at_most).at;
  auto& busy = job_->busy();
  const std::lock_guard lock(busy.mutex);
  number_ = ++busy.last_number;
  busy.all.push_back({number_, std::move(what), until});
  show_longest(*job_, busy);
}

Busy::~Busy() {
  if (!job_->is_own()) return;
  auto& busy = job_->busy();
  const std::lock_guard lock(busy.mutex);
  std::erase_if(busy.all, [&](const auto& period) { return period.number == number_; });
  show_longest(*job_, busy);
}

Job Job::join(const JobOptions& options) {
  const Environment environment = Environment::read();
  set_log_level(environment.log_level);
  set_cublas_workspace();
  require_all_or_none(environment);
  JobOptions used = options;
  if (environment.deadline && options.deadline == kTrainingDeadline)
    used.deadline = *environment.deadline;
  Joining joining;
  if (environment.rank) {
    joining = join_by_tutti_run(environment);
  } else if (environment.launcher) {
    joining = join_by(*environment.launcher, environment, options.join_deadline);
  } else {
    joining = join_alone(environment);
  }
  const auto& hosts = joining.identity.hosts;
  if (hosts && hosts->hosts() > 1) {
    joining.identity.links =
        fmt::format("TUTTI_LINK {}, TUTTI_LANES {}", environment.link, environment.lanes);
  }
  auto state = std::make_shared<JobState>(joining.identity, host_system(),
                                          std::move(joining.rendezvous), used);
  if (environment.link == "mpi" && state->spans_hosts()) start_mpi(*state, environment);
  return Job(std::move(state));
}

int Job::rank() const { return state_->identity().rank; }
int Job::size() const { return state_->identity().size; }
int Job::threads() const { return state_->identity().threads; }
int Job::restarts() const { return state_->identity().restarts; }
const std::string& Job::run_id() const { return state_->identity().run; }

bool Job::should_end() const {
  state_->require_own();
  require_together(*state_, "Job::should_end()");
  note_end_requests(*state_);
  const std::string mine(1, end_was_requested() ? '1' : '0');
  const auto tag = fmt::format("should_end() {}", state_->next_number("should_end()"));
  const auto all = gather(*state_, tag, RankSet::below(size()).ranks(), {mine, {}});
  return std::ranges::any_of(all, [](const Parcel& one) { return one.bytes == "1"; });
}

Busy Job::busy(std::string what, std::chrono::milliseconds at_most) const {
  return Busy(state_, std::move(what), at_most);
}

std::vector<int> Job::alive() const {
  state_->require_own();
  return (RankSet::below(size()) - state_->gone().all).ranks();
}

}  // namespace tutti
