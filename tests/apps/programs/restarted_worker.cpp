// In the first attempt rank 1 is killed after all have met; the others notice it and fail. Later
// attempts end well.

#include <unistd.h>
#include <csignal>
#include <cstdio>

#include "job/job_state.h"
#include "tutti/job.h"

int main() {
  const auto job = tutti::Job::join();
  std::printf("restarts=%d\n", job.restarts());
  std::fflush(stdout);
  if (job.restarts() > 0) return 0;
  if (job.rank() == 1) raise(SIGKILL);
  while (job.alive().size() == static_cast<std::size_t>(job.size())) usleep(1000);
  job.state()->rendezvous().blame(1, "rank 1 is gone");
  _exit(3);
}
