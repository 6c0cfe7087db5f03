// Which threads of a process count as the program's.

#include "base/helper_thread.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tutti::test
