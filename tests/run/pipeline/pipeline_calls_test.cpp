// What workers of a pipeline do, transfers included, by an executor that knows nothing of how the
// lists came about.

#include <gmock/gmock.h>

#include <fmt/format.h>
#include <map>
#include <set>
#include <tuple>

#include "run/pipeline/pipeline_walk.h"
#include "run/pipeline/samples.h"

namespace tutti::test {
namespace {

using Kind = PipelineCall::Kind;
using Calls = std::vector<std::vector<PipelineCall>>;

Calls all_calls(const PipelineSchedule& schedule) {
  Calls calls;
  for (int w = 0; w < schedule.workers(); ++w) calls.push_back(calls_of(schedule, w));
  return calls;
}

bool is_send(Kind kind) { return kind == Kind::send_activation || kind == Kind::send_gradient; }
bool is_receive(Kind kind) {
  return kind == Kind::receive_activation || kind == Kind::receive_gradient;
}

/// Workers that compute what they hold the inputs of, and whose sends and receives end only
/// together. Returns what went wrong first; "" when all have done everything.
std::string execute(const PipelineSchedule& schedule, const Calls& calls) {
  // What a worker holds: activations and gradients by (is activation, stage that made it, number).
  using Held = std::set<std::tuple<bool, int, int>>;
  std::vector<Held> held(calls.size());
  std::vector<std::size_t> at(calls.size(), 0);
  const auto wrong = [](std::size_t worker, const PipelineCall& call, const char* what) {
    return fmt::format("worker {}: {} {}", worker, text_of(call.action), what);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t w = 0; w < calls.size(); ++w) {
      if (at[w] == calls[w].size()) continue;
      const auto& call = calls[w][at[w]];
      const auto [work, s, m] = call.action;
      if (call.kind == Kind::compute) {
        if (work == StageWork::forward) {
          if (s > 0 && !held[w].contains({true, s - 1, m}))
            return wrong(w, call, "lacks its input");
          held[w].insert({true, s, m});
        } else {
          if (!held[w].contains({true, s, m})) return wrong(w, call, "comes before the forward");
          if (makes_input_gradient(call.action)) {
            if (s + 1 < schedule.stages() && !held[w].contains({false, s + 1, m}))
              return wrong(w, call, "lacks its gradient");
            held[w].insert({false, s, m});
          } else if (!held[w].contains({false, s, m})) {
            return wrong(w, call, "comes before the input's half");
          }
        }
        ++at[w];
        moved = true;
      } else if (is_send(call.kind)) {
        const bool is_activation = call.kind == Kind::send_activation;
        if (!held[w].contains({is_activation, s, m})) return wrong(w, call, "is not there to send");
        const auto peer = static_cast<std::size_t>(call.peer);
        if (at[peer] == calls[peer].size()) continue;
        const auto& other = calls[peer][at[peer]];
        if (!is_receive(other.kind) || other.peer != static_cast<int>(w)) continue;
        if ((other.kind == Kind::receive_activation) != is_activation ||
            other.action != call.action)
          return wrong(w, call, "is sent where another is received");
        held[peer].insert({is_activation, s, m});
        ++at[w];
        ++at[peer];
        moved = true;
      }
    }
  }
  for (std::size_t w = 0; w < calls.size(); ++w) {
    if (at[w] != calls[w].size()) return wrong(w, calls[w][at[w]], "waits for ever");
  }
  return "";
}

// promise: pipeline_schedule.h#calls_of, pipeline_schedule.h#one_f_one_b
TEST(PipelineCalls, NobodyWaitsForEverEvenWhereSendsWaitForTheirReceive) {
  for (const auto& schedule : sample_schedules()) {
    ASSERT_EQ(execute(schedule, all_calls(schedule)), "") << schedule.text();
  }
}

// promise: pipeline_schedule.h#calls_of
TEST(PipelineCalls, OfAScheduleOfOnesOwnDoNotWaitForEverEither) {
  // Stages in a zigzag, which makes two workers exchange in both directions: 0, 3 and 1, 2.
  using enum StageWork;
  std::vector<std::vector<StageAction>> actions(2);
  for (int m = 0; m < 5; ++m) {
    for (const int s : {0, 1, 2, 3}) actions[s == 0 || s == 3 ? 0 : 1].push_back({forward, s, m});
    for (const int s : {3, 2, 1, 0}) {
      auto& own = actions[s == 0 || s == 3 ? 0 : 1];
      if (m % 2 == 0) {
        own.push_back({backward, s, m});
      } else {
        own.push_back({backward_input, s, m});
        own.push_back({backward_weight, s, m});
      }
    }
  }
  const auto schedule = PipelineSchedule::custom("zigzag", 4, 5, actions);
  EXPECT_EQ(execute(schedule, all_calls(schedule)), "");
}

// promise: pipeline_schedule.h#calls_of
TEST(PipelineCalls, TheExecutorFindsADeadlock) {
  // Sends right after their computes and receives right before theirs: neither worker can begin.
  const auto schedule = PipelineSchedule::one_f_one_b(2, 3);
  auto calls = all_calls(schedule);
  for (auto& own : calls) {
    std::vector<PipelineCall> naive;
    for (const auto& call : own) {
      if (call.kind != Kind::compute) continue;
      const auto [work, s, m] = call.action;
      const bool forwards = work == StageWork::forward;
      if (forwards && s == 1) naive.push_back({Kind::receive_activation, {work, 0, m}, 0});
      if (!forwards && s == 0) naive.push_back({Kind::receive_gradient, {work, 1, m}, 1});
      naive.push_back(call);
      if (forwards && s == 0) naive.push_back({Kind::send_activation, {work, 0, m}, 1});
      if (!forwards && s == 1) naive.push_back({Kind::send_gradient, {work, 1, m}, 0});
    }
    own = naive;
  }
  EXPECT_THAT(execute(schedule, calls), ::testing::HasSubstr("waits for ever"));
}

// promise: pipeline_schedule.h#action, pipeline_schedule.h#calls_of, pipeline_schedule.h#peer
TEST(PipelineCalls, ComputesAreTheActionsAndTransfersJoinNeighbouringStagesOnOtherWorkers) {
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    int expected = 0;
    for (int s = 0; s + 1 < schedule.stages(); ++s) {
      if (schedule.worker_of(s) != schedule.worker_of(s + 1)) ++expected;
    }
    expected *= 2 * schedule.micro_batches();
    int sends = 0, receives = 0;
    for (int w = 0; w < schedule.workers(); ++w) {
      std::vector<StageAction> computes;
      for (const auto& call : calls_of(schedule, w)) {
        const int s = call.action.stage;
        const bool forwards = call.action.work == StageWork::forward;
        const int other = forwards ? s + 1 : s - 1;
        switch (call.kind) {
          case Kind::compute:
            computes.push_back(call.action);
            ASSERT_EQ(call.peer, -1);
            continue;
          case Kind::send_activation:
          case Kind::send_gradient:
            ++sends;
            ASSERT_EQ(call.kind == Kind::send_activation, forwards);
            ASSERT_EQ(schedule.worker_of(s), w);
            ASSERT_EQ(schedule.worker_of(other), call.peer);
            break;
          case Kind::receive_activation:
          case Kind::receive_gradient:
            ++receives;
            ASSERT_EQ(call.kind == Kind::receive_activation, forwards);
            ASSERT_EQ(schedule.worker_of(s), call.peer);
            ASSERT_EQ(schedule.worker_of(other), w);
            break;
        }
        ASSERT_NE(call.peer, w);
        ASSERT_TRUE(forwards || makes_input_gradient(call.action));
      }
      ASSERT_EQ(computes, schedule.actions(w));
    }
    ASSERT_EQ(sends, expected);
    ASSERT_EQ(receives, expected);
  }
}

using When = std::map<std::tuple<bool, int, int>, double>;  // by actions that others wait for

/// When each such action's worker begins its next one, by a walk in units.
When next_starts(const PipelineSchedule& schedule) {
  const auto walk = walk_in_units(schedule);
  When when;
  for (int w = 0; w < schedule.workers(); ++w) {
    const auto& actions = schedule.actions(w);
    for (std::size_t i = 0; i + 1 < actions.size(); ++i) {
      if (actions[i].work == StageWork::backward_weight) continue;
      when[{actions[i].work == StageWork::forward, actions[i].stage, actions[i].micro_batch}] =
          walk.times[static_cast<std::size_t>(w)][i + 1].start;
    }
  }
  return when;
}

// promise: pipeline_schedule.h#calls_of
TEST(PipelineCalls, ASendFollowsItsComputeAndAReceiveComesAsLateAsItsSenderNeedNotWait) {
  std::map<std::string, int> early;
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    const auto next = next_starts(schedule);
    const auto walk = walk_in_units(schedule);
    for (int w = 0; w < schedule.workers(); ++w) {
      std::size_t done = 0;  // computes
      StageAction last;
      for (const auto& call : calls_of(schedule, w)) {
        const auto [work, stage, micro_batch] = call.action;
        if (call.kind == Kind::compute) {
          ++done;
          last = call.action;
        } else if (is_send(call.kind)) {
          ASSERT_EQ(last, call.action);
        } else {
          const bool forwards = work == StageWork::forward;
          const auto& coming = schedule.actions(w)[done];
          const bool is_needed =
              coming.stage == stage + (forwards ? 1 : -1) && coming.micro_batch == micro_batch &&
              (forwards ? coming.work == StageWork::forward : makes_input_gradient(coming));
          if (is_needed) continue;
          // Another compute comes first: were it before the receive, the sender would stand still.
          ++early[schedule.name()];
          const auto start = walk.times[static_cast<std::size_t>(w)][done].start;
          const auto found = next.find({forwards, stage, micro_batch});
          ASSERT_NE(found, next.end());
          ASSERT_GE(start, found->second);
        }
      }
    }
  }
  EXPECT_EQ(early.count("gpipe"), 0);
  EXPECT_EQ(early.count("1f1b"), 0);
}

}  // namespace
}  // namespace tutti::test
