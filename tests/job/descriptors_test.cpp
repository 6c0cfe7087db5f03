// A launcher that has too few file descriptors left for what its workers send each other.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "base/system.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "job/wire/rank_set.h"
#include "support/process_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

/// The soft limit on descriptors for the life of this.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = limit;
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

/// One above the highest number in use.
rlim_t descriptors_in_use() {
  const int next = ::open("/dev/null", O_RDONLY);
  ::close(next);
  return static_cast<rlim_t>(next);
}

TEST(Descriptors, launcher_that_has_too_few_tells_every_worker_which_limit_to_raise) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors of its own when it looks at an object's type";
#endif
  const DescriptorLimit limit(descriptors_in_use() + 30);
  const ProcessOutcome outcome = run_processes(3, [](int rank, FileDescriptor socket) {
    rlimit free{};
    ::getrlimit(RLIMIT_NOFILE, &free);
    free.rlim_cur = free.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &free);
    const auto rendezvous = connect_to_broker(std::move(socket), rank, 3);
    const auto gather = [&](const char* tag, int descriptors) {
      Parcel mine;
      for (int i = 0; i < descriptors; ++i)
        mine.descriptors.push_back(host_system()->create_memory("test", 4096));
      return rendezvous->all_gather(tag, {0, 1, 2}, std::move(mine),
                                    Deadline::after(Clock::now(), seconds(30)));
    };
    EXPECT_EQ(gather("few", 1).size(), 3U);
    for (const char* tag : {"many", "later"}) {
      try {
        gather(tag, 60);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PeerLost& error) {
        ADD_FAILURE() << error.what();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("the launcher has too few file descriptors"));
        EXPECT_THAT(error.what(), HasSubstr("`ulimit -n`"));
      }
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// findings-3: C7
TEST(Descriptors, a_worker_that_has_too_few_names_the_limit) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "the sanitizer needs descriptors of its own when it looks at an object's type";
#endif
  for (rlim_t spare = 0; spare < 2; ++spare) {
    const ProcessOutcome outcome = run_processes(
        1,
        [&](int, FileDescriptor socket) {
          const auto in_use = descriptors_in_use();
          const DescriptorLimit limit(in_use + spare);
          try {
            connect_to_broker(std::move(socket), 0, 1);
            host_system()->create_memory("test", 4096).duplicate();
            host_system()->life_line().duplicate();
          } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("Too many open files; `ulimit -n` is " +
                                                std::to_string(in_use + spare) + ", raise it"));
            return;
          }
        },
        seconds(20));
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

}  // namespace
}  // namespace tutti::test
