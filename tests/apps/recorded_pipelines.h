#pragma once

// A run's timeline with steps of pipelines, and what `tutti schedule --profile` makes of it.

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "support/running_command.h"
#include "sync/plan/step_name.h"
#include "timeline_merge.h"
#include "tutti/pipeline_timeline.h"

namespace tutti {

// A machine that has been up for weeks.
inline constexpr std::int64_t kUpNs = 4'000'000'000'123'456;

inline Clock::time_point at_ms(double ms) {
  return Clock::time_point(std::chrono::nanoseconds(kUpNs + std::llround(ms * 1e6)));
}

struct Event {
  int rank = 0;
  std::string name;
  double start_ms = 0;
  double end_ms = 0;
};

/// A step of a pipeline whose first worker is `first`, from `start_ms` on.
inline std::vector<Event> step_of(std::int64_t number, const std::vector<TimedAction>& actions,
                                  int first, double start_ms,
                                  const std::string& trainer = "model") {
  std::vector<Event> events;
  std::map<int, double> ends;
  for (const auto& [worker, action, start, end] : actions) {
    events.push_back({first + worker, text_of(action), start_ms + start, start_ms + end});
    auto& last = ends[worker];
    last = std::max(last, end);
  }
  for (const auto& [worker, end] : ends) {
    events.push_back(
        {first + worker, step_name(number, trainer), start_ms - 0.5, start_ms + end + 0.25});
  }
  return events;
}

inline std::vector<TimedAction> actions_of(const PipelineSchedule& schedule,
                                           double forward_ms = 1) {
  return simulate(schedule, PipelineCosts::equal(schedule.stages(),
                                                 {.forward_ms = forward_ms,
                                                  .backward_input_ms = 1.5,
                                                  .backward_weight_ms = 0.75},
                                                 0.25))
      .actions();
}

/// What a run has recorded.
class Trace {
 public:
  Trace& add(const std::vector<Event>& events) {
    events_.insert(events_.end(), events.begin(), events.end());
    return *this;
  }
  /// Writes it as workers do, and the launcher.
  std::string written() const {
    int size = 2;
    for (const auto& event : events_) size = std::max(size, event.rank + 1);
    const auto file = folder_.file("run.json");
    for (int rank = 0; rank < size; ++rank) {
      Timeline part(file, rank, size);
      part.add("all-gather", at_ms(0), at_ms(0.125));
      for (const auto& event : events_) {
        if (event.rank == rank) part.add(event.name, at_ms(event.start_ms), at_ms(event.end_ms));
      }
    }
    EXPECT_EQ(command::merge_timeline_files(file, size), std::vector<std::string>());
    return file;
  }
  std::string raw(const std::string& text) const {
    std::ofstream(folder_.file("raw.json")) << text;
    return folder_.file("raw.json");
  }
  std::string svg() const { return folder_.file("run.svg"); }

 private:
  TemporaryFolder folder_;
  std::vector<Event> events_;
};

inline Finished schedule(const std::string& file, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"schedule", "--profile", file});
  return run_command(options);
}

/// Standard output; nothing may go wrong.
inline std::string shown(const std::string& file, const std::vector<std::string>& options = {}) {
  const auto run = schedule(file, options);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return run.out;
}

/// The one line of what is refused.
inline std::string refusal(const std::string& file, const std::vector<std::string>& options,
                           int status) {
  const auto run = schedule(file, options);
  EXPECT_EQ(run.status, status) << run.out;
  EXPECT_EQ(run.out, "");
  const auto lines = lines_of(run.err);
  EXPECT_EQ(lines.size(), status == 2 ? 2 : 1) << run.err;
  EXPECT_EQ(run.err.ends_with("\nSee tutti schedule --help.\n"), status == 2) << run.err;
  return lines.empty() ? "" : lines.front();
}

/// A timeline of one worker's step, with a forward and a backward of these "ts" and "dur".
inline std::string raw_step(const std::string& forward, const std::string& backward) {
  const std::string start = R"({"ph":"X","pid":0,"tid":1,"name":)";
  return R"({"traceEvents":[)" + start + R"("step 1 of \"m\"","ts":0,"dur":9e9},)" + start +
         R"("forward of stage 0, micro-batch 0",)" + forward + "}," + start +
         R"("backward of stage 0, micro-batch 0",)" + backward + "}]}";
}

}  // namespace tutti
