// What a limit on the size of files does to shared memory, which the kernel counts as a file.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "base/system.h"
#include "support/process_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

// promise: error.h#OutOfMemory
TEST(FileSizeLimit, memory_beyond_it_is_refused_with_the_figures_instead_of_a_signal) {
  const ProcessOutcome outcome = run_processes(1, [](int, const FileDescriptor&) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 10'000 * 1024;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto system = host_system();
    const auto fits = system->create_memory("test", 10'000 * 1024);
    EXPECT_TRUE(fits);
    try {
      system->create_memory("large", 64 << 20);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const OutOfMemory& error) {
      EXPECT_STREQ(error.what(),
                   "cannot size shared memory \"large\" of 67108864 bytes: this process may write "
                   "files of 10240000 bytes at most, and the system counts shared memory as one; "
                   "raise `ulimit -f`");
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
