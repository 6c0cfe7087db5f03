// All but rank 0 wait for it in a collective; rank 0 comes when a file, the first argument, exists.
// With a second argument, that many seconds, they wait in Job::join() so long at most.

#include <unistd.h>
#include <cstdio>
#include <cstdlib>

#include "tutti/group.h"
#include "tutti/job.h"

int main(int count, char** arguments) {
  const bool is_first = std::atoi(std::getenv("TUTTI_RANK")) == 0;
  const auto wait_for_file = [&] {
    while (is_first && access(arguments[1], F_OK) != 0) usleep(1000);
  };
  tutti::JobOptions options;
  if (count > 2) {
    options.join_deadline = std::chrono::seconds(std::atoi(arguments[2]));
    std::fprintf(stderr, "waiting=%d\n", static_cast<int>(getpid()));
    wait_for_file();
  }
  const auto job = tutti::Job::join(options);
  tutti::Group group(job);
  std::printf("waiting=%d\n", static_cast<int>(getpid()));
  wait_for_file();
  group.barrier();
}
