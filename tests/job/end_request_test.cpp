#include "job/end_request.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "base/system.h"
#include "job/job_state.h"
#include "job/rendezvous/thread_rendezvous.h"
#include "tutti/job.h"

namespace tutti::test {
namespace {

/// How a child ends that has run `body` with a job of its own, which notes requests: its exit
/// status, or minus the signal.
int end_of(const std::function<void(JobState&)>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    JobState job({}, host_system(), ThreadRendezvous().rendezvous(0), {});
    note_end_requests(job);
    body(job);
    ::_exit(end_was_requested() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void wait_until_it_is_another() {
  std::this_thread::sleep_for(kSameEndRequest + std::chrono::milliseconds(50));
}

TEST(EndRequest, IsNotedAndSoIsTheSameOneFromAnotherSender) {
  EXPECT_EQ(end_of([](JobState&) {}), 0);
  for (const int signal : {SIGTERM, SIGUSR1}) {
    EXPECT_EQ(end_of([&](JobState&) { ::raise(signal); }), 1);
    EXPECT_EQ(end_of([&](JobState&) {
                ::raise(signal);
                ::raise(SIGTERM);
              }),
              1);
  }
}

TEST(EndRequest, AnotherOneEndsTheProcess) {
  EXPECT_EQ(end_of([](JobState&) {
              ::raise(SIGTERM);
              wait_until_it_is_another();
              ::raise(SIGUSR1);
            }),
            -SIGUSR1);
}

TEST(EndRequest, AnotherOneWaitsForASave) {
  EXPECT_EQ(end_of([](JobState&) {
              ::raise(SIGTERM);
              wait_until_it_is_another();
              const EndPostponed outer;
              {
                const EndPostponed until_saved;
                ::raise(SIGTERM);
              }
              ::_exit(7);  // the outer one still lives
            }),
            7);
  EXPECT_EQ(end_of([](JobState&) {
              ::raise(SIGTERM);
              wait_until_it_is_another();
              {
                const EndPostponed until_saved;
                ::raise(SIGTERM);
              }
              ::_exit(7);
            }),
            -SIGTERM);
}

TEST(EndRequest, EndsWithTheStatusThatSaysResume) {
  EXPECT_EQ(end_of([](JobState& job) { end_to_resume(job); }), kResumeStatus);
}

}  // namespace
}  // namespace tutti::test
