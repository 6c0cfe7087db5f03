// A second join() in a process that was started by the launcher: refused, and what the program has
// opened in the meantime is left alone.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "job/job_state.h"
#include "support/log_capture.h"
#include "support/process_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

void be_started_by_a_launcher(int rank, int size, int socket) {
  ::setenv("TUTTI_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("TUTTI_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("TUTTI_RUN", "5eed", 1);
  ::setenv("TUTTI_RENDEZVOUS_FD", std::to_string(socket).c_str(), 1);
}

std::string refusal_of_join() {
  try {
    Job::join();
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "joined";
}

TEST(JoinAgain, file_of_the_program_that_has_the_sockets_number_by_now_is_left_alone) {
  const ProcessOutcome outcome = run_processes(2, [](int rank, FileDescriptor socket) {
    ::fcntl(socket.get(), F_SETFD, 0);  // as the launcher does before exec
    const int number = socket.release();
    be_started_by_a_launcher(rank, 2, number);
    { const Job job = Job::join(); }
    EXPECT_EQ(::fcntl(number, F_GETFD), -1) << "the job is over";
    int file[2];
    ASSERT_EQ(::pipe(file), 0);
    ASSERT_EQ(::dup2(file[1], number), number);
    EXPECT_THAT(refusal_of_join(), HasSubstr("a process joins its job once"));
    EXPECT_EQ(::write(number, "x", 1), 1) << "the file is closed behind the program's back";
    EXPECT_EQ(::fcntl(number, F_GETFD), 0) << "the file is not inherited any more";
    int sockets[2];  // which looks as the launcher's does
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    ASSERT_EQ(::dup2(sockets[1], number), number);
    EXPECT_THAT(refusal_of_join(), HasSubstr("a process joins its job once"));
    EXPECT_EQ(::write(number, "x", 1), 1);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(JoinAgain, file_of_a_program_that_inherited_the_variables_alone_is_left_alone) {
  const ProcessOutcome outcome = run_processes(1, [](int, const FileDescriptor&) {
    int file[2];
    ASSERT_EQ(::pipe(file), 0);
    be_started_by_a_launcher(0, 1, file[1]);
    EXPECT_THAT(refusal_of_join(), HasSubstr("is no socket to a launcher"));
    EXPECT_EQ(::write(file[1], "x", 1), 1);
    EXPECT_EQ(::fcntl(file[1], F_GETFD), 0);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

/// As Python's subprocess and sudo close them, and as a worker's own child finds them.
// findings-3: C7
TEST(JoinAgain, a_socket_that_somebody_has_closed_is_told_with_both_causes) {
  const ProcessOutcome outcome = run_processes(1, [](int, const FileDescriptor&) {
    be_started_by_a_launcher(0, 1, 333);
    EXPECT_EQ(refusal_of_join(),
              "TUTTI_RENDEZVOUS_FD is 333, which is not open. Either a program between `tutti run` "
              "and this one closes what it inherits (sudo, Python's subprocess): keep the "
              "descriptor open (close_fds=False), or start `tutti run` inside of it. Or this "
              "process is no worker, and was started by one: remove the variables that begin with "
              "TUTTI_ from its environment");
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// findings-3: D3
TEST(JoinAgain, a_job_that_nothing_was_made_of_is_told_at_its_end) {
  for (const int size : {1, 2, 3}) {
    const ProcessOutcome outcome = run_processes(size, [&](int rank, FileDescriptor socket) {
      ::fcntl(socket.get(), F_SETFD, 0);  // as the launcher does before exec
      be_started_by_a_launcher(rank, size, socket.release());
      const LogCapture log;
      { const Job job = Job::join(); }
      EXPECT_EQ(log.count("workers have joined, and the program ends without a Group, a "
                          "DataParallel or a Trainer"),
                rank == 0 && size > 1 ? 1 : 0);
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
    const ProcessOutcome used = run_processes(size, [&](int rank, FileDescriptor socket) {
      ::fcntl(socket.get(), F_SETFD, 0);
      be_started_by_a_launcher(rank, size, socket.release());
      const LogCapture log;
      {
        const Job job = Job::join();
        job.state()->next_number("as each group does");
      }
      { EXPECT_EQ(log.count("without a Group"), 0); }
    });
    EXPECT_TRUE(used.all_good()) << used.describe();
  }
}

}  // namespace
}  // namespace tutti::test
