// Which threads of a process count as the program's.

#include "base/helper_thread.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "tutti/error.h"

namespace tutti::test {
namespace {

/// Runs until told to end; `more` is called by it first.
class Runs {
 public:
  template <class More>
  explicit Runs(More more) : thread_([this, more] { run(more); }) {
    while (!is_there_) std::this_thread::yield();
  }
  Runs() : Runs([] {}) {}
  ~Runs() {
    ends_ = true;
    thread_.join();
  }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

 private:
  template <class More>
  void run(const More& more) {
    more();
    is_there_ = true;
    while (!ends_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<bool> is_there_{false}, ends_{false};
  std::thread thread_;
};

TEST(HelperThread, OfTheProgramAreCounted) {
  const int before = other_threads();
  const Runs one;
  EXPECT_EQ(other_threads(), before + 1);
}

TEST(HelperThread, MarkedOnesAreNot) {
  const int before = other_threads();
  const Runs one([] { mark_helper_thread(); });
  EXPECT_EQ(other_threads(), before);
}

TEST(HelperThread, ThoseOfAnEngineAreNotNorThoseThatTheyStart) {
  const int before = other_threads();
  std::unique_ptr<Runs> one, another;
  {
    const StartsHelpers starts;
    one = std::make_unique<Runs>([&] { another = std::make_unique<Runs>(); });
  }
  EXPECT_EQ(other_threads(), before);
  const Runs after;
  EXPECT_EQ(other_threads(), before + 1);
}

TEST(HelperThread, AThreadThatTakesNoSignalsIsCountedUnlessItIsAHelper) {
  const int before = other_threads();
  sigset_t all, own;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &own);
  const auto program = std::make_unique<Runs>();
  const sigset_t most = signals_of_helpers();
  pthread_sigmask(SIG_SETMASK, &most, nullptr);
  const auto helper = std::make_unique<Runs>();
  pthread_sigmask(SIG_SETMASK, &own, nullptr);
  EXPECT_EQ(other_threads(), before + 1);
}

// It was a bare std::system_error, "Resource temporarily unavailable".
// findings-3: C6
TEST(HelperThread, WithoutRoomForOneTheLimitsAreNamed) {
  pthread_attr_t before;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge;
  ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 56), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  std::string text;
  int code = 0;
  try {
    start_helper_thread("tutti-test", [] {}).join();
  } catch (const IoError& error) {
    text = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    text = std::string("another error: ") + error.what();
  }
  ::pthread_setattr_default_np(&before);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&before);
  EXPECT_EQ(code, EAGAIN);
  EXPECT_THAT(text, testing::MatchesRegex(
                        "cannot start the thread \"tutti-test\": Resource temporarily "
                        "unavailable; raise what is too low: `ulimit -u` \\(processes and threads "
                        "of this user\\) is [a-z0-9]+, pids.max of the control group .*, `ulimit "
                        "-v` \\(KiB of addresses\\) is [a-z0-9]+"));
}

TEST(ProgramThread, IsTheCallingOneUnlessItWorksForAnother) {
  const auto me = ProgramThread::own();
  EXPECT_EQ(program_thread(), me.mark);
  std::thread([&] {
    EXPECT_NE(program_thread(), me.mark);
    {
      const WorksFor program(me);
      EXPECT_EQ(program_thread(), me.mark);
      const WorksFor itself(ProgramThread::own());
      EXPECT_EQ(program_thread(), me.mark) << "what it does for itself is the program's, too";
    }
    EXPECT_EQ(program_thread(), ProgramThread::own().mark);
  }).join();
}

TEST(ProgramThread, IsNoOtherThreadForWhoWorksForIt) {
  const int before = other_threads();
  std::thread([&, me = ProgramThread::own()] {
    EXPECT_EQ(other_threads(), before + 1);
    const WorksFor program(me);
    EXPECT_EQ(other_threads(), before);
  }).join();
}

TEST(ProgramThread, WhoHasWorkedForAnotherIsAHelper) {
  const int before = other_threads();
  std::thread([&, me = ProgramThread::own()] {
    { const WorksFor program(me); }
    int seen = -1;
    std::thread([&] { seen = other_threads(); }).join();
    EXPECT_EQ(seen, before + 1) << "the program's, and not the one that starts it";
  }).join();
}

}  // namespace
}  // namespace tutti::test
