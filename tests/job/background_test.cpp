// What was started and not waited for moves while its thread waits for something else.

#include "job/background.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/helper_thread.h"

namespace tutti {
namespace {

/// Waits, while it moves, for something else: as who reads why a group ended does.
class Waiting : public Unfinished {
 public:
  explicit Waiting(Background& all) : all_(all) {}
  bool progress() override {
    ++calls;
    inner_moved = all_.progress();
    return true;
  }
  int calls = 0;
  bool inner_moved = true;

 private:
  Background& all_;
};

class Counting : public Unfinished {
 public:
  bool progress() override {
    ++calls;
    return true;
  }
  int calls = 0;
};

TEST(Background, WhatWaitsWhileItMovesDoesNotMeetItself) {
  Background all;
  Waiting waiting(all);
  all.add(waiting);
  EXPECT_TRUE(all.progress());
  EXPECT_EQ(waiting.calls, 1);
  EXPECT_FALSE(waiting.inner_moved);
  EXPECT_TRUE(all.progress()) << "it moves again afterwards";
  EXPECT_EQ(waiting.calls, 2);
  all.remove(waiting);
  EXPECT_FALSE(all.progress());
}

TEST(Background, AThreadMovesItsOwnAlone) {
  Background all;
  Counting mine;
  Counting theirs;
  all.add(mine);
  std::thread([&] { all.add(theirs); }).join();
  EXPECT_TRUE(all.progress());
  EXPECT_EQ(mine.calls, 1);
  EXPECT_EQ(theirs.calls, 0);
}

// Backward on a device: its thread waits for a step while the program's waits in backward().
TEST(Background, AThreadThatWorksForAnotherMovesThatOnes) {
  Background all;
  Counting mine;
  all.add(mine);
  std::thread([&, me = ProgramThread::own()] {
    EXPECT_FALSE(all.progress());
    const WorksFor program(me);
    EXPECT_TRUE(all.progress());
  }).join();
  EXPECT_EQ(mine.calls, 1);
}

}  // namespace
}  // namespace tutti
