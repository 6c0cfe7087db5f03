// Adds up ones over all workers that are left, again and again, in a new group whenever one is
// lost. Once a worker was lost, it ends well after 100 sums. With the argument "exit", rank 1 ends
// after ten sums with status 3.

#include <unistd.h>

#include <cstdio>

#include "tutti/error.h"
#include "tutti/group.h"
#include "tutti/job.h"

int main(int count, char**) {
  const auto job = tutti::Job::join();
  std::printf("pid=%d\n", getpid());
  for (;;) {
    try {
      const tutti::Group group(job, job.alive(), "those that are left");
      std::printf("members=%d\n", group.size());
      for (int sums = 0; group.size() == job.size() || sums < 100; ++sums) {
        float value = 1;
        group.all_reduce({&value, 1, tutti::DType::float32}, tutti::Reduction::sum);
        if (value != static_cast<float>(group.size())) return 1;
        if (count > 1 && job.rank() == 1 && sums == 10) _exit(3);
      }
      return 0;
    } catch (const tutti::PeerLost& lost) {
      std::printf("lost=%d\n", lost.rank());
    }
  }
}
