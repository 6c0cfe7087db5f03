// Asks after each step whether a signal wants the job to end. Then rank 0 saves for so many
// milliseconds as the first argument says, rank 1 for twice as long; where that is -1, they
// have nothing more to do and complete; where it is -2, rank 1 aborts then.

#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tutti/group.h"
#include "tutti/job.h"

int main(int /*count*/, char** arguments) {
  const auto job = tutti::Job::join();
  tutti::Group group(job);
  for (int step = 1; !job.should_end(); ++step) {
    group.barrier();
    if (step == 2) std::printf("stepping=%d\n", static_cast<int>(getpid()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int save = std::atoi(arguments[1]);
  if (save == -2 && job.rank() == 1) std::abort();
  if (save < 0) return 0;
  std::printf("saves=%d\n", static_cast<int>(getpid()));
  std::this_thread::sleep_for(std::chrono::milliseconds(save * (job.rank() + 1)));
  std::printf("saved=%d\n", static_cast<int>(getpid()));
  return tutti::kResumeStatus;
}
