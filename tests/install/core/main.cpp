#include <tutti/dtype.h>
#include <tutti/environment.h>
#include <tutti/error.h>
#include <tutti/group.h>
#include <tutti/job.h>

#include <cstdio>

int main() {
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  float value = static_cast<float>(job.rank() + 1);
  group.all_reduce({&value, 1, tutti::DType::float32}, tutti::Reduction::sum);
  std::printf("sum over %d workers: %g\n", group.size(), value);
  return group.size() == 2 && value == 3 ? 0 : 1;
}
