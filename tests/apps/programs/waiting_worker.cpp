// All but rank 0 wait for it in a collective; rank 0 comes when a file, the argument, exists.

#include <unistd.h>
#include <cstdio>

#include "tutti/group.h"
#include "tutti/job.h"

int main(int, char** arguments) {
  const auto job = tutti::Job::join();
  tutti::Group group(job);
  std::printf("waiting=%d\n", static_cast<int>(getpid()));
  while (job.rank() == 0 && access(arguments[1], F_OK) != 0) usleep(1000);
  group.barrier();
}
