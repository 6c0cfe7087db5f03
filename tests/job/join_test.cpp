// Joining, and what ends it: among threads and among processes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "arrivals.h"
#include "job/gather.h"
#include "job/job_state.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "job/wire/rank_set.h"
#include "support/log_capture.h"
#include "support/process_ranks.h"
#include "support/shared_between_processes.h"
#include "support/text_of.h"
#include "support/thread_ranks.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

/// Variables of Environment for the life of a test, all others unset.
class JoinFromEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const auto& variable : Environment::variables())
      ::unsetenv(std::string(variable.name).c_str());
  }
  static void set(const std::map<std::string, std::string>& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  template <class E>
  static std::string failure(const JobOptions& options = {}) {
    try {
      Job::join(options);
    } catch (const E& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another error: ") + error.what();
    }
    return "joined";
  }
};

// promise: job.h#join, job.h#run_id, job.h#threads
TEST_F(JoinFromEnvironment, alone_it_is_a_job_of_one_and_says_so) {
  LogCapture log;
  const Job job = Job::join();
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.size(), 1);
  EXPECT_EQ(job.threads(), 1);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_THAT(job.alive(), ::testing::ElementsAre(0));
  EXPECT_THAT(log.lines(), ::testing::ElementsAre("info: no launcher: a group of one"));
  const Job second = Job::join();  // more than one job per process
  EXPECT_NE(&job.state()->board(), &second.state()->board());
  EXPECT_EQ(job.run_id().size(), 16U);
  EXPECT_NE(job.run_id(), second.run_id());
}

// promise: gpu#what-is-exact
TEST_F(JoinFromEnvironment, cublas_is_told_to_be_deterministic_before_its_first_use) {
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  Job::join();
  EXPECT_STREQ(::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
}

// promise: errors#deadlines, job.h#deadline
TEST_F(JoinFromEnvironment, deadline_of_the_environment_takes_the_place_of_the_default) {
  set({{"TUTTI_DEADLINE", "2.5"}, {"TUTTI_LOG", "warn"}, {"TUTTI_THREADS", "3"}});
  EXPECT_EQ(Job::join().state()->options().deadline, milliseconds(2500));
  EXPECT_EQ(Job::join().threads(), 3);
  EXPECT_TRUE(Job::join().state()->identity().sets_threads) << "torch is told";
  EXPECT_EQ(Job::join({.deadline = seconds(7)}).state()->options().deadline, seconds(7));
  EXPECT_EQ(Job::join().threads(), 3);
  set({{"TUTTI_LOG", "info"}});
  Job::join();
}

// promise: clusters#other-launchers-and-several-hosts, job.h#restarts
TEST_F(JoinFromEnvironment, workers_of_another_launcher_find_one_another_on_this_host) {
  for (const char* restart : {"0", "2"}) {
    const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor) {
      set({{"RANK", std::to_string(rank)},
           {"WORLD_SIZE", "3"},
           {"LOCAL_WORLD_SIZE", "3"},
           {"TORCHELASTIC_RESTART_COUNT", restart}});
      LogCapture log;
      const Job job = Job::join();
      EXPECT_EQ(job.rank(), rank);
      EXPECT_EQ(job.size(), 3);
      EXPECT_EQ(job.threads(), 1);
      EXPECT_EQ(std::to_string(job.restarts()), restart);
      EXPECT_EQ(log.count("torchrun has started 3 workers on this host, threads each: 1"),
                rank == 0 ? 1 : 0);
      const auto ids = gather(*job.state(), "ids", {0, 1, 2}, {job.run_id(), {}});
      EXPECT_EQ(ids[0].bytes, ids[static_cast<std::size_t>(rank)].bytes);
      EXPECT_EQ(ids[0].bytes.size(), 16U);
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

// promise: clusters#how-workers-find-one-another, clusters#what-differs-from-tutti-run
TEST_F(JoinFromEnvironment, all_attempts_of_another_launcher_are_one_run_and_not_one_job) {
  std::set<std::string> runs;
  for (const char* restart : {"0", "1"}) {
    for (const char* name : {"a", "b"}) {
      int pipe_ends[2];
      ASSERT_EQ(::pipe(pipe_ends), 0);
      const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor) {
        set({{"RANK", std::to_string(rank)},
             {"WORLD_SIZE", "2"},
             {"TORCHELASTIC_RUN_ID", name},
             {"TORCHELASTIC_RESTART_COUNT", restart}});
        const Job job = Job::join();
        if (rank != 0) return;
        ASSERT_EQ(::write(pipe_ends[1], job.run_id().data(), 16), 16);
      });
      ASSERT_TRUE(outcome.all_good()) << outcome.describe();
      std::string run(16, ' ');
      ASSERT_EQ(::read(pipe_ends[0], run.data(), 16), 16);
      runs.insert(name + run);
      ::close(pipe_ends[0]);
      ::close(pipe_ends[1]);
    }
  }
  EXPECT_EQ(runs.size(), 2U) << "one for each name, in both attempts";
  EXPECT_NE(runs.begin()->substr(1), runs.rbegin()->substr(1));
  // A worker of the first attempt that is left over is none of the second.
  const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor) {
    set({{"RANK", std::to_string(rank)},
         {"WORLD_SIZE", "2"},
         {"TORCHELASTIC_RESTART_COUNT", std::to_string(rank)}});
    EXPECT_THAT(failure<Timeout>({.join_deadline = milliseconds(300)}),
                rank == 0 ? HasSubstr("rank 1 had not come to Job::join()")
                          : HasSubstr(fmt::format(
                                "rank 1 of the 2 workers that torchrun (process {}) has started "
                                "on this host could not join the others within",
                                ::getppid())));
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: clusters#what-can-go-wrong, error.h#Unsupported, job.h#join
TEST_F(JoinFromEnvironment, workers_on_several_hosts_need_a_hub) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(failure<InvalidArgument>(), HasSubstr("TUTTI_HUB"));
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(failure<Unsupported>(),
            "mpirun has started workers on several hosts and does not tell which of them are on "
            "this one");
  set({{"PMI_RANK", "1"}, {"PMI_SIZE", "65"}});
  EXPECT_THAT(failure<InvalidArgument>(),
              MatchesRegex("mpiexec has started 65 workers on .+: must be 1 to 64"));
  set({{"OMPI_COMM_WORLD_RANK", "70"},
       {"OMPI_COMM_WORLD_SIZE", "200"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "65"}});
  EXPECT_THAT(failure<InvalidArgument>(),
              MatchesRegex("mpirun has started 65 workers on .+: must be 1 to 64"));
  set({{"OMPI_COMM_WORLD_RANK", "0"},
       {"OMPI_COMM_WORLD_SIZE", "1025"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "25"}});
  EXPECT_EQ(failure<InvalidArgument>(), "mpirun has started 1025 workers: must be 1 to 1024");
  set({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(failure<Unsupported>(), "joined");
}

/// Each host has a launcher's process of its own, and all have one token; the next job has it too.
// promise: clusters#several-hosts
TEST_F(JoinFromEnvironment, workers_of_several_hosts_have_the_run_of_the_hub) {
  const auto runs_of_a_job = [](const std::map<std::string, std::string>& meeting) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const auto outcome = run_processes(2, [&](int host, FileDescriptor) {
      // This process is the host's launcher.
      const pid_t worker = ::fork();
      if (worker == 0) {
        std::map<std::string, std::string> variables = {{"RANK", std::to_string(host)},
                                                        {"WORLD_SIZE", "2"},
                                                        {"LOCAL_RANK", "0"},
                                                        {"LOCAL_WORLD_SIZE", "1"}};
        variables.insert(meeting.begin(), meeting.end());
        set(variables);
        bool is_good = false;
        {
          const Job job = Job::join();  // destroyed before the end, as the hub may be in here
          const std::string run = job.run_id() + "\n";
          const bool is_written = ::write(ends[1], run.data(), run.size()) > 0;
          is_good = is_written && job.state()->hosts().hosts() == 2;
        }
        ::_exit(is_good ? 0 : 1);
      }
      int status = -1;
      ::waitpid(worker, &status, 0);
      EXPECT_EQ(status, 0);
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
    std::array<char, 256> text{};
    const auto bytes = ::read(ends[0], text.data(), text.size());
    ::close(ends[0]);
    ::close(ends[1]);
    return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  };
  const int port = 20'000 + ::getpid() % 12'000;
  const std::map<std::string, std::string> hub = {{"TUTTI_HUB", fmt::format("127.0.0.1:{}", port)},
                                                  {"TUTTI_TOKEN", "one of many jobs"}};
  const auto runs = runs_of_a_job(hub);
  ASSERT_GT(runs.size(), 20U);
  const auto first = runs.substr(0, runs.size() / 2);
  EXPECT_EQ(runs, first + first);
  EXPECT_NE(runs_of_a_job(hub), runs);
  const auto by_torchrun = runs_of_a_job(
      {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}, {"TUTTI_LOG", "warn"}});
  EXPECT_EQ(by_torchrun.size(), runs.size()) << "torchrun's own variables are enough";
}

// promise: clusters#other-launchers-and-several-hosts, clusters#what-can-go-wrong
TEST_F(JoinFromEnvironment, a_port_beside_torchruns_that_is_in_use_is_named_with_it) {
  const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&at), bytes), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const int port = ntohs(at.sin_port);
  set({{"RANK", "0"},
       {"WORLD_SIZE", "2"},
       {"LOCAL_RANK", "0"},
       {"LOCAL_WORLD_SIZE", "1"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(port - 1)}});
  LogCapture log;
  EXPECT_EQ(failure<IoError>(),
            fmt::format("the hub cannot listen at 127.0.0.1:{}: the port is in use, by another job "
                        "or another program; it was chosen as the one after MASTER_PORT, {}; give "
                        "another --master-port, or TUTTI_HUB=:port, on all hosts",
                        port, port - 1));
  EXPECT_THAT(log.lines(), Contains(HasSubstr(fmt::format(
                               "hosts meet at 127.0.0.1:{} (the port after MASTER_PORT, without "
                               "a secret, as TUTTI_TOKEN is not set)",
                               port))));
  const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor) {
    set({{"RANK", std::to_string(rank)},
         {"WORLD_SIZE", "4"},
         {"LOCAL_RANK", std::to_string(rank)},
         {"LOCAL_WORLD_SIZE", "2"},
         {"MASTER_ADDR", "127.0.0.1"},
         {"MASTER_PORT", std::to_string(port - 1)}});
    const std::string why = fmt::format("the hub cannot listen at 127.0.0.1:{}", port);
    EXPECT_THAT(
        failure<IoError>({.join_deadline = seconds(20)}),
        StartsWith(rank == 0 ? why : "rank 0, through which this host joins, failed: " + why));
  });
  EXPECT_TRUE(outcome.all_good()) << "the other workers of the host: " << outcome.describe();
  ::close(taken);
}

// promise: clusters#what-differs-from-tutti-run, job.h#threads
TEST_F(JoinFromEnvironment, torch_is_told_the_threads_unless_it_was_by_omp_num_threads) {
  const auto identity_with = [](std::map<std::string, std::string> more) {
    int pipe_ends[2];
    EXPECT_EQ(::pipe(pipe_ends), 0);
    const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor) {
      more["PMI_RANK"] = std::to_string(rank);
      more["PMI_SIZE"] = "2";
      set(more);
      const Job job = Job::join();
      const auto& joined = job.state()->identity();
      const int numbers[2] = {joined.threads, joined.sets_threads};
      if (rank == 1) {
        EXPECT_EQ(::write(pipe_ends[1], numbers, sizeof numbers), ssize_t{sizeof numbers});
      }
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
    int numbers[2] = {-1, -1};
    EXPECT_EQ(::read(pipe_ends[0], numbers, sizeof numbers), ssize_t{sizeof numbers});
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
    return std::make_pair(numbers[0], numbers[1] != 0);
  };
  EXPECT_EQ(identity_with({}), std::make_pair(1, true));
  EXPECT_EQ(identity_with({{"OMP_NUM_THREADS", "3"}}), std::make_pair(3, false));
  EXPECT_EQ(identity_with({{"OMP_NUM_THREADS", "3"}, {"TUTTI_THREADS", "2"}}),
            std::make_pair(2, true));
}

// promise: job.h#join_deadline, limits.h#kMaxWorkers, limits.h#kMaxWorkersPerHost
TEST_F(JoinFromEnvironment, bad_values_are_named) {
  const std::map<std::string, std::string> good = {{"TUTTI_RANK", "1"},
                                                   {"TUTTI_SIZE", "2"},
                                                   {"TUTTI_RUN", "5eed"},
                                                   {"TUTTI_RENDEZVOUS_FD", "0"}};
  for (const auto& [name, value] : good) {
    auto lacking = good;
    lacking.erase(name);
    set(lacking);
    EXPECT_THAT(failure<InvalidArgument>(), HasSubstr(name + " is not set although")) << name;
  }
  const auto with = [&](const std::string& name, const std::string& value) {
    auto changed = good;
    changed[name] = value;
    set(changed);
    return failure<InvalidArgument>();
  };
  EXPECT_EQ(with("TUTTI_RANK", "2"), "TUTTI_RANK is 2: must be 0 to 1, as TUTTI_SIZE is 2");
  EXPECT_THAT(with("TUTTI_RANK", "-1"), HasSubstr("TUTTI_RANK is \"-1\""));
  EXPECT_THAT(with("TUTTI_SIZE", "0"), HasSubstr("TUTTI_SIZE is \"0\""));
  EXPECT_EQ(
      with("TUTTI_SIZE", "65"),
      "TUTTI_SIZE is 65: on one host it must be 1 to 64, and TUTTI_HOSTS, which would tell of "
      "others, is not set");
  EXPECT_EQ(with("TUTTI_SIZE", "1025"), "TUTTI_SIZE is 1025: must be 1 to 1024");
  auto on_hosts = good;
  on_hosts["TUTTI_SIZE"] = "70";
  on_hosts["TUTTI_HOSTS"] = "5,65";
  set(on_hosts);
  EXPECT_EQ(failure<InvalidArgument>(), "TUTTI_HOSTS has 65 workers on host 1: must be 1 to 64");
  EXPECT_THAT(with("TUTTI_RENDEZVOUS_FD", "987"), HasSubstr("TUTTI_RENDEZVOUS_FD is 987"));
  EXPECT_THAT(with("TUTTI_RESTART", "-1"), HasSubstr("TUTTI_RESTART is \"-1\""));
  EXPECT_THAT(with("TUTTI_LOG", "loud"), HasSubstr("TUTTI_LOG is \"loud\""));
  const int file = ::open("/dev/null", O_RDONLY);
  EXPECT_THAT(with("TUTTI_RENDEZVOUS_FD", std::to_string(file)), HasSubstr("no socket"));
  set({{"TUTTI_RESTART", "1"}});
  EXPECT_THAT(failure<InvalidArgument>(),
              HasSubstr("TUTTI_RANK is not set although TUTTI_RESTART is"));
  clear();
  for (const auto bad : {milliseconds(0), milliseconds(-5)}) {
    EXPECT_THAT(failure<InvalidArgument>({.deadline = bad}), HasSubstr("must be positive"));
    EXPECT_THAT(failure<InvalidArgument>({.join_deadline = bad}), HasSubstr("join_deadline"));
    EXPECT_THAT(failure<InvalidArgument>({.stall_notice = bad}), HasSubstr("stall_notice"));
  }
}

// promise: environment.h#rank, job.h#Job
TEST_F(JoinFromEnvironment, workers_of_a_launcher_meet_and_join_once) {
  const ProcessOutcome outcome = run_processes(3, [](int rank, FileDescriptor socket) {
    ::fcntl(socket.get(), F_SETFD, 0);  // as the launcher does before exec
    set({{"TUTTI_RANK", std::to_string(rank)},
         {"TUTTI_SIZE", "3"},
         {"TUTTI_THREADS", "2"},
         {"TUTTI_RESTART", "4"},
         {"TUTTI_RUN", "5eed"},
         {"TUTTI_RENDEZVOUS_FD", std::to_string(socket.release())}});
    const Job job = Job::join();
    EXPECT_EQ(job.rank(), rank);
    EXPECT_EQ(job.size(), 3);
    EXPECT_EQ(job.threads(), 2);
    EXPECT_EQ(job.restarts(), 4);
    EXPECT_EQ(job.run_id(), "5eed");
    EXPECT_THAT(failure<InvalidArgument>(), HasSubstr("a process joins its job once"));
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(Join, identity_that_makes_no_sense_is_refused) {
  const auto make = [](Identity identity) {
    JobState(identity, host_system(), ThreadRendezvous().rendezvous(0), {});
  };
  EXPECT_THROW(make({.rank = 0, .size = 0}), InvalidArgument);
  EXPECT_EQ(text_of([&] { make({.rank = 0, .size = 65}); }),
            "65 workers on one host: must be 1 to 64");
  EXPECT_EQ(text_of([&] { make({.rank = 0, .size = 1025}); }),
            "a job of 1025 workers: must be 1 to 1024");
  EXPECT_THROW(make({.rank = 2, .size = 2}), InvalidArgument);
  EXPECT_THROW(make({.rank = -1, .size = 2}), InvalidArgument);
  EXPECT_THROW(make({.threads = 0}), InvalidArgument);
  EXPECT_THROW(make({.restarts = -1}), InvalidArgument);
  EXPECT_NO_THROW(make({}));
}

// promise: limits.h#kMaxWorkersPerHost, job.h#rank, job.h#size
TEST(Join, works_for_all_numbers_of_workers) {
  for (const int size : {1, 2, 3, 5, 8, 64}) {
    std::atomic<int> ranks{0};
    run_thread_ranks(size, [&](const Job& job) {
      EXPECT_EQ(job.size(), size);
      ranks += job.rank() + 1;
    });
    EXPECT_EQ(ranks, size * (size + 1) / 2);
  }
}

// promise: job.h#Job
TEST(Join, copies_of_a_job_are_asked_by_several_threads) {
  run_thread_ranks(2, [](const Job& job) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&job, rank = job.rank()] {
        const Job copy = job;
        for (int round = 0; round < 200; ++round) {
          const Busy busy = copy.busy("evaluate", seconds(30));
          EXPECT_EQ(copy.rank(), rank);
          EXPECT_EQ(copy.size(), 2);
          EXPECT_EQ(copy.run_id(), job.run_id());
          EXPECT_TRUE(std::ranges::count(copy.alive(), rank));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(job.state()->slot(job.rank()).busy_until.load(), 0);
  });
}

// promise: errors#when-a-process-has-ended, job.h#Job, job.h#join_deadline
TEST(Join, rank_that_does_not_come_is_named_by_all) {
  const auto world = std::make_shared<ThreadWorld>(3);
  ThreadOptions options;
  options.world = world;
  options.job.join_deadline = milliseconds(300);
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  threads.reserve(2);
  const auto keep = world->thread_rendezvous().rendezvous(2);  // there, but never joins
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        JobState({rank, 3, 1}, std::make_shared<ThreadSystem>(world, rank),
                 world->thread_rendezvous().rendezvous(rank), options.job);
      } catch (const Timeout& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const std::string& text : texts)
    // On a loaded machine the other one may not have come in time either.
    EXPECT_THAT(text,
                ::testing::MatchesRegex("ranks? ([01] )?2 had not come to Job::join\\(\\).*"));
}

// promise: data_parallel.h#DataParallel, numerics#what-the-bits-may-depend-on-and-what-not
TEST(Join, worker_with_another_number_of_threads_is_refused_by_all) {
  const ProcessOutcome outcome = run_processes(2, [](int rank, FileDescriptor socket) {
    JobState({rank, 2, rank + 1}, host_system(), connect_to_broker(std::move(socket), rank, 2), {});
  });
  for (const RankEnd& end : outcome.ranks)
    EXPECT_THAT(end.text, HasSubstr("rank 1 has 2 workers, 2 threads each")) << outcome.describe();
}

// promise: job.h#restarts
TEST(Join, workers_of_different_attempts_are_refused_by_all) {
  const ProcessOutcome outcome = run_processes(2, [](int rank, FileDescriptor socket) {
    JobState({.rank = rank, .size = 2, .restarts = rank}, host_system(),
             connect_to_broker(std::move(socket), rank, 2), {});
  });
  for (const RankEnd& end : outcome.ranks)
    EXPECT_THAT(end.text, HasSubstr("rank 1 has 2 workers, 1 threads each, restart 1"))
        << outcome.describe();
}

// promise: errors#when-a-process-has-ended, job.h#Job
TEST(JoinProcesses, worker_that_dies_before_joining_is_lost_to_all) {
  const ProcessOutcome outcome = run_processes(3, [](int rank, FileDescriptor socket) {
    if (rank == 1) ::raise(SIGKILL);
    JobState({rank, 3, 1}, host_system(), connect_to_broker(std::move(socket), rank, 3), {});
  });
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
  for (const int rank : {0, 2})
    EXPECT_EQ(outcome.ranks[static_cast<std::size_t>(rank)].text,
              "rank 1 ended before coming to Job::join()");
  // The launcher, which may see all ends in one look, is told whose was the first.
  EXPECT_EQ(outcome.blames.size(), 2U);
  for (const Blame& blame : outcome.blames) EXPECT_EQ(blame.culprit, 1);
}

struct KillBoard {
  Arrivals arrivals;
  std::atomic<std::int64_t> killed{0};
  std::array<std::atomic<std::int64_t>, 4> noticed{};
};

// promise: errors#when-a-process-has-ended
TEST(JoinProcesses, sudden_death_is_known_to_all_within_a_second) {
  auto best = Clock::duration::max();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const SharedBetweenProcesses<KillBoard> shared;
    const ProcessOutcome outcome = run_process_ranks(4, [&](const Job& job) {
      if (job.rank() == 2) {
        for (const int other : {0, 1, 3}) poll_until_awaited(job, other, 2);
        shared->killed = Clock::now().time_since_epoch().count();
        ::raise(SIGKILL);
      }
      shared->arrivals.arrive(job, 1);
      try {
        shared->arrivals.await(job, 1, "step 5, barrier");
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.rank(), 2);
        auto& noticed = shared->noticed[static_cast<std::size_t>(job.rank())];
        noticed = Clock::now().time_since_epoch().count();
        // The first to end must not become what the others see.
        Arrivals::poll_until([&] {
          return shared->noticed[0] != 0 && shared->noticed[1] != 0 && shared->noticed[3] != 0;
        });
        throw;
      }
    });
    EXPECT_EQ(outcome.ranks[2].signal, SIGKILL);
    Clock::duration slowest{};
    for (const int rank : {0, 1, 3}) {
      EXPECT_THAT(outcome.ranks[static_cast<std::size_t>(rank)].text,
                  HasSubstr("rank 2 ended before reaching step 5, barrier"))
          << outcome.describe();
      slowest = std::max(slowest, Clock::duration(shared->noticed[static_cast<std::size_t>(rank)] -
                                                  shared->killed));
    }
    EXPECT_EQ(outcome.blames.size(), 3U);
    for (const Blame& blame : outcome.blames) EXPECT_EQ(blame.culprit, 2);
    best = std::min(best, slowest);
  }
  EXPECT_LT(best, seconds(1)) << "the best of three: the machine may be loaded";
}

// promise: group#waiting-and-what-started-means
TEST(JoinProcesses, workers_bound_to_processors_of_their_own_are_not_crowded) {
  const auto allowed = host_system()->allowed_processors();
  if (allowed.size() < 2 || host_system()->processors() < 2)
    GTEST_SKIP() << "two processors are needed";
  for (const bool apart : {true, false}) {
    const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor socket) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(allowed[apart ? static_cast<std::size_t>(rank) : 0], &own);
      ASSERT_EQ(::sched_setaffinity(0, sizeof own, &own), 0);
      const JobState job({rank, 2, 1}, host_system(), connect_to_broker(std::move(socket), rank, 2),
                         {});
      EXPECT_EQ(job.crowded(), !apart);
      EXPECT_EQ(job.spin_rounds() <= 8, !apart) << "it polls before it sleeps";
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

// promise: errors#when-a-process-has-ended
TEST(JoinProcesses, signals_of_the_program_stay_its_own) {
  const ProcessOutcome outcome = run_processes(2, [](int rank, FileDescriptor socket) {
    const auto handlers = [] {
      std::vector<void (*)(int)> all;
      for (int signal = 1; signal < NSIG; ++signal) {
        struct sigaction action {};
        if (::sigaction(signal, nullptr, &action) == 0) all.push_back(action.sa_handler);
      }
      return all;
    };
    const auto before = handlers();
    EXPECT_GT(before.size(), 50U);
    const JobState job({rank, 2, 1}, host_system(), connect_to_broker(std::move(socket), rank, 2),
                       {});
    EXPECT_EQ(handlers(), before);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(JoinProcesses, worker_that_left_and_then_ended_did_not_die) {
  const ProcessOutcome outcome = run_process_ranks(2, [](const Job& job) {
    if (job.rank() == 1) return;
    Arrivals::poll_until([&] { return job.state()->slot(1).ended.load() != 0; });
    Arrivals nobody;
    nobody.await(job, 1, "barrier", RankSet{1});
  });
  EXPECT_THAT(outcome.ranks[0].text,
              HasSubstr("rank 1 left the job in an orderly way before reaching barrier"));
}

TEST(JoinProcesses, barriers_between_processes) {
  for (const int size : {1, 2, 3, 5, 8}) {
    const SharedBetweenProcesses<KillBoard> shared;
    const ProcessOutcome outcome = run_process_ranks(size, [&](const Job& job) {
      for (int round = 1; round <= 200; ++round) {
        shared->arrivals.arrive(job, round);
        shared->arrivals.await(job, round, "round");
      }
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

// The threads that watch were never woken.
// findings-3: C3
TEST(JoinProcesses, a_program_that_closes_all_descriptors_ends) {
  for (const int size : {1, 2, 3}) {
    ProcessOptions options;
    options.limit = seconds(15);
    const ProcessOutcome outcome = run_process_ranks(
        size,
        [](const Job& job) {
          gather(*job.state(), "all are there", RankSet::below(job.size()).ranks(), {});
          ::close_range(3, ~0U, 0);
        },
        options);
    for (const auto& rank : outcome.ranks) EXPECT_FALSE(rank.overdue) << outcome.describe();
  }
}

// promise: errors#children-of-a-worker, job.h#alive
TEST(JoinProcesses, child_forked_by_a_worker_neither_leaves_nor_hangs_in_its_name) {
  const ProcessOutcome outcome = run_process_ranks(2, [](Job job) {
    if (job.rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        {
          const Job moved = std::move(job);  // its end is the job's end here
        }
        ::_exit(0);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
      EXPECT_EQ(job.state()->slot(1).state.load(), WorkerSlot::joined);
    } else {
      Arrivals::poll_until([&] { return job.alive().size() == 1; });
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
