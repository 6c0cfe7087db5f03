#include "support/process_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

#include "base/system.h"
#include "job/job_state.h"
#include "job/rendezvous/socket_rendezvous.h"

namespace tutti::test {
namespace {

constexpr std::size_t kMaxText = 16384;  // fits a pipe: a child never waits for its reader

struct Child {
  pid_t pid = -1;
  FileDescriptor text;
};

[[noreturn]] void run_child(int rank, FileDescriptor socket, const FileDescriptor& text,
                            const std::function<void(int, FileDescriptor)>& body) {
  std::string error;
  const bool failed_before = ::testing::Test::HasFailure();
  try {
    body(rank, std::move(socket));
    if (!failed_before && ::testing::Test::HasFailure()) error = "an expectation failed, see above";
  } catch (const std::exception& e) {
    error = e.what();
    if (error.empty()) error = "exception without text";
  } catch (...) {
    error = "unknown exception";
  }
  error.resize(std::min(error.size(), kMaxText));
  if (!error.empty()) static_cast<void>(!::write(text.get(), error.data(), error.size()));
  std::fflush(nullptr);
  ::_exit(error.empty() ? 0 : 1);
}

using Brokers = std::vector<std::unique_ptr<Broker>>;

Child start(int rank, const HostMap& hosts, const Brokers& brokers,
            const std::function<void(int, FileDescriptor)>& body) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  Child child{-1, FileDescriptor(ends[0])};
  const FileDescriptor text(ends[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  child.pid = ::fork();
  if (child.pid < 0) throw std::runtime_error("fork");
  if (child.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    child.text.reset();
    FileDescriptor mine;
    for (int host = 0; host < hosts.hosts(); ++host) {
      const bool is_own = host == hosts.host_of(rank);
      auto end = brokers[static_cast<std::size_t>(host)]->take_worker_end(
          is_own ? rank : hosts.ranks_of(host).first());
      if (is_own) mine = std::move(end);
    }
    run_child(rank, std::move(mine), text, body);
  }
  return child;
}

/// True once the child was reaped.
bool reap(const Child& child, RankEnd& end) {
  int status = 0;
  const pid_t got = ::waitpid(child.pid, &status, WNOHANG);
  if (got == 0) return false;
  if (WIFEXITED(status)) end.status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(child.text.get(), buffer, sizeof buffer)) > 0;)
    end.text.append(buffer, static_cast<std::size_t>(n));
  return true;
}

}  // namespace

ProcessOutcome run_processes(int size, const std::function<void(int, FileDescriptor)>& body,
                             std::chrono::milliseconds limit) {
  return run_processes(HostMap::one(size), body, limit);
}

ProcessOutcome run_processes(const HostMap& hosts,
                             const std::function<void(int, FileDescriptor)>& body,
                             std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  Brokers brokers = connected_brokers(hosts);
  std::vector<Child> children;
  children.reserve(static_cast<std::size_t>(hosts.size()));
  for (int rank = 0; rank < hosts.size(); ++rank) {
    children.push_back(start(rank, hosts, brokers, body));
  }
  // Brokers have threads from here on.
  for (int rank = 0; rank < hosts.size(); ++rank) {
    brokers[static_cast<std::size_t>(hosts.host_of(rank))]->close_worker_end(rank);
  }
  ProcessOutcome outcome;
  outcome.ranks.resize(children.size());
  std::vector<bool> reaped(children.size(), false);
  bool killed = false;
  while (std::find(reaped.begin(), reaped.end(), false) != reaped.end()) {
    const bool kill_now = !killed && Clock::now() >= end;
    for (std::size_t r = 0; r < children.size(); ++r) {
      if (reaped[r]) continue;
      if (kill_now) {
        outcome.ranks[r].overdue = true;
        ::kill(children[r].pid, SIGKILL);
      }
      reaped[r] = reap(children[r], outcome.ranks[r]);
    }
    killed = killed || kill_now;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  outcome.blames = brokers.front()->blames();
  while (!brokers.empty()) brokers.pop_back();  // the hub waits for the others
  return outcome;
}

ProcessOutcome run_process_ranks(int size, const std::function<void(Job)>& body,
                                 const ProcessOptions& options) {
  const HostMap hosts = options.hosts.value_or(even_hosts(size, asked_hosts()));
  return run_processes(
      hosts,
      [&](int rank, FileDescriptor socket) {
        Identity identity{rank, size, options.threads};
        identity.hosts = hosts;
        body(Job(std::make_shared<JobState>(identity, host_system(),
                                            connect_to_broker(std::move(socket), rank, size),
                                            options.job)));
      },
      options.limit);
}

bool ProcessOutcome::all_good() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankEnd& end) { return end.good(); });
}

std::string ProcessOutcome::describe() const {
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    text += fmt::format("rank {}: status {}, signal {}{}: {}\n", r, ranks[r].status,
                        ranks[r].signal, ranks[r].overdue ? ", overdue" : "", ranks[r].text);
  return text;
}

}  // namespace tutti::test
