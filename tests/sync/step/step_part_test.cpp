#include "sync/step/step_part.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using Calls = std::vector<std::string>;

/// Writes down its calls; refuses steps where `refuses` holds.
class Recorded : public StepPart {
 public:
  Recorded(std::string name, Calls& calls, bool refuses = false)
      : name_(std::move(name)), calls_(calls), refuses_(refuses) {}
  void open(const StepFacts&) override { note("open"); }
  void publish() override { note("publish"); }
  void judge(StepFacts& step) override {
    note("judge");
    if (refuses_) step.verdict.refusal = name_;
  }
  void apply(const StepFacts&) override { note("apply"); }
  void commit(StepFacts& step) override {
    note("commit");
    ++step.report.collectives;
  }
  void drop() noexcept override { note("drop"); }
  void end(StepFacts&) override { note("end"); }
  void settle() override { note("settle"); }
  void resume() override { note("resume"); }

 private:
  void note(const char* call) { calls_.push_back(name_ + " " + call); }
  std::string name_;
  Calls& calls_;
  bool refuses_;
};

void take_step(const StepParts& parts, StepFacts& step) {
  parts.open(step);
  parts.publish();
  parts.judge(step);
  parts.apply(step);
  parts.finish(step);
}

TEST(StepParts, AreCalledInTheirOrderInEachPhase) {
  Calls calls;
  Recorded first("a", calls);
  Recorded second("b", calls);
  StepParts parts;
  parts.add(first);
  parts.add(second);
  StepFacts step;
  take_step(parts, step);
  EXPECT_THAT(calls, ElementsAre("a open", "b open", "a publish", "b publish", "a judge", "b judge",
                                 "a apply", "b apply", "a commit", "b commit", "a end", "b end"));
  EXPECT_EQ(step.report.collectives, 2);
}

TEST(StepParts, AreCalledInTheirOrderBetweenSteps) {
  Calls calls;
  Recorded first("a", calls);
  Recorded second("b", calls);
  StepParts parts;
  parts.add(first);
  parts.add(second);
  parts.settle();
  parts.resume();
  EXPECT_THAT(calls, ElementsAre("a settle", "b settle", "a resume", "b resume"));
}

TEST(StepParts, OfARefusedStepAreDroppedInsteadOfApplied) {
  Calls calls;
  Recorded first("a", calls);
  Recorded second("b", calls, true);
  StepParts parts;
  parts.add(first);
  parts.add(second);
  StepFacts step;
  take_step(parts, step);
  EXPECT_EQ(step.verdict.refusal, "b");
  EXPECT_THAT(calls, ElementsAre("a open", "b open", "a publish", "b publish", "a judge", "b judge",
                                 "a drop", "b drop", "a end", "b end"));
  EXPECT_EQ(step.report.collectives, 0);
}

TEST(StepParts, ThatTheyOwnAreCalledInTheSameOrderAndEndWithThem) {
  /// Writes down its end.
  class Ending : public Recorded {
   public:
    Ending(std::string name, Calls& calls) : Recorded(std::move(name), calls), calls_(calls) {}
    ~Ending() override { calls_.emplace_back("ended"); }

   private:
    Calls& calls_;
  };
  Calls calls;
  Recorded last("b", calls);
  {
    StepParts parts;
    auto& first = parts.add<Ending>("a", calls);
    parts.add(last);
    first.publish();
    parts.publish();
  }
  EXPECT_THAT(calls, ElementsAre("a publish", "a publish", "b publish", "ended"));
}

TEST(StepParts, AddTheirTrafficInTheirOrder) {
  class Sending : public StepPart {
   public:
    explicit Sending(std::int64_t times) : times_(times) {}
    void add_traffic(TrafficReport& report) const override {
      report.collectives = 10 * report.collectives + times_;
    }

   private:
    std::int64_t times_;
  };
  Calls calls;
  StepParts parts;
  EXPECT_EQ(parts.traffic().collectives, 0);
  parts.add<Sending>(3);
  parts.add<Recorded>("b", calls);
  parts.add<Sending>(4);
  EXPECT_EQ(parts.traffic().collectives, 34);
}

TEST(StepParts, ThatOverrideNothingLeaveAStepAsItIs) {
  StepPart part;
  StepParts parts;
  parts.add(part);
  StepFacts step{.number = 7, .loss_scale = 2};
  take_step(parts, step);
  parts.drop();
  EXPECT_EQ(step.number, 7);
  EXPECT_TRUE(step.verdict.refusal.empty());
  EXPECT_EQ(step.report.collectives, 0);
}

}  // namespace
}  // namespace tutti
