#include "tutti/job.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include <fmt/format.h>

#include "base/log.h"
#include "base/run_identity.h"
#include "base/standard_output.h"
#include "base/system.h"
#include "job/job_state.h"
#include "job/rank_set.h"
#include "job/socket_rendezvous.h"
#include "job/thread_rendezvous.h"
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
        fmt::format("TUTTI_RENDEZVOUS_FD is {}, which is not open: this process was not "
                    "started by `tutti run`, or has joined its job before",
                    fd));
  if ((flags & FD_CLOEXEC) != 0) throw taken();
  require_own_stream(fd);
  ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  joined = ::getpid();
  return FileDescriptor(fd);
}

}  // namespace

Busy::Busy(std::shared_ptr<JobState> job, std::string what, std::chrono::milliseconds at_most)
    : job_(std::move(job)), number_(job_->enter_busy(std::move(what), at_most)) {}

Busy::~Busy() { job_->leave_busy(number_); }

Job Job::join(const JobOptions& options) {
  const Environment environment = Environment::read();
  set_log_level(environment.log_level);
  require_all_or_none(environment);
  JobOptions used = options;
  if (environment.deadline && options.deadline == kTrainingDeadline)
    used.deadline = *environment.deadline;
  Identity identity{.threads = environment.threads.value_or(1)};
  std::shared_ptr<Rendezvous> rendezvous;
  if (!environment.rank) {
    if (!environment.foreign_launcher.empty()) {
      // "mpirun (OMPI_COMM_WORLD_SIZE=2)" ends in the number.
      const std::string& who = environment.foreign_launcher;
      const std::size_t equals = who.rfind('=');
      const std::string number = who.substr(equals + 1, who.size() - equals - 2);
      throw Unsupported(fmt::format(
          "started by {} with {} processes; Tutti would train {} models that know nothing of each "
          "other; use `tutti run -n {}` (or, to train alone, unset these variables)",
          who, number, number, number));
    }
    set_log_rank(0, 1);
    log().info("no launcher: a group of one");
    identity.run = draw_run_identity();
    rendezvous = ThreadRendezvous().rendezvous(0);
  } else {
    identity.rank = *environment.rank;
    identity.size = *environment.size;
    identity.restarts = environment.restart.value_or(0);
    identity.run = environment.run;
    if (identity.size > kMaxWorkers)
      throw InvalidArgument(
          fmt::format("TUTTI_SIZE is {}: must be 1 to {}", identity.size, kMaxWorkers));
    if (identity.rank >= identity.size)
      throw InvalidArgument(fmt::format("TUTTI_RANK is {}: must be 0 to {}, as TUTTI_SIZE is {}",
                                        identity.rank, identity.size - 1, identity.size));
    set_log_rank(identity.rank, identity.size);
    print_whole_lines_at_once();
    rendezvous =
        connect_to_broker(take_socket(*environment.rendezvous_fd), identity.rank, identity.size);
  }
  return Job(std::make_shared<JobState>(identity, host_system(), std::move(rendezvous), used));
}

int Job::rank() const { return state_->identity().rank; }
int Job::size() const { return state_->identity().size; }
int Job::threads() const { return state_->identity().threads; }
int Job::restarts() const { return state_->identity().restarts; }
const std::string& Job::run_id() const { return state_->identity().run; }

Busy Job::busy(std::string what, std::chrono::milliseconds at_most) const {
  return Busy(state_, std::move(what), at_most);
}

std::vector<int> Job::alive() const {
  state_->require_own();
  return ranks_of(ranks_below(size()) & ~state_->gone().all);
}

}  // namespace tutti
