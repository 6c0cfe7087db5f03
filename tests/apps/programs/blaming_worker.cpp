// Rank 0 fails first, but says that rank 1 is the cause; rank 1 fails after it. With an argument
// rank 1 ends well, so that rank 0 is what failed: it writes its cause ("says") or does not.

#include <unistd.h>
#include <cstdio>
#include <string_view>

#include "job/job_state.h"
#include "tutti/job.h"

int main(int count, char** arguments) {
  const auto job = tutti::Job::join();
  if (job.rank() == 0) {
    job.state()->rendezvous().blame(1, "rank 1 sent a wrong shape\na second line");
    if (count == 1) std::puts("the echo");
    if (count > 1 && std::string_view(arguments[1]) == "says")
      std::puts("error: rank 1 sent a wrong shape");
    std::fflush(stdout);
    _exit(3);
  }
  while (job.alive().size() > 1) usleep(1000);
  if (count > 1) _exit(0);
  std::puts("the cause");
  std::fflush(stdout);
  _exit(7);
}
