// Rank 0 fails first, but says that rank 1 is the cause; rank 1 fails after it.

#include <unistd.h>
#include <cstdio>

#include "job/job_state.h"
#include "tutti/job.h"

int main() {
  const auto job = tutti::Job::join();
  if (job.rank() == 0) {
    job.state()->rendezvous().blame(1, "rank 1 sent a wrong shape");
    std::puts("the echo");
    std::fflush(stdout);
    _exit(3);
  }
  while (job.alive().size() > 1) usleep(1000);
  std::puts("the cause");
  std::fflush(stdout);
  _exit(7);
}
