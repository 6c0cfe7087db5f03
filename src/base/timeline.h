#pragma once

// A record of what happened when, written as a Chrome trace (chrome://tracing, Perfetto).
//
// Threads: one. Failure: a file that cannot be written is logged when the timeline ends.

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace tutti {

class Timeline {
 public:
  /// Events of worker `rank` go to `file`, or to `file`.rank<R> when there are several workers
  /// (`tutti run` joins them).
  Timeline(std::string file, int rank, int size);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void add(std::string name, Clock::time_point begin, Clock::time_point end);

 private:
  struct Event {
    std::string name;
    Clock::time_point begin, end;
  };
  std::string file_;
  int rank_;
  std::vector<Event> events_;
};

/// Records the time from its construction to its end, if there is a timeline.
class TimelineSpan {
 public:
  TimelineSpan(Timeline* timeline, std::string_view name) : timeline_(timeline) {
    if (timeline_ == nullptr) return;
    name_ = name;
    begin_ = Clock::now();
  }
  ~TimelineSpan() {
    if (timeline_ != nullptr) timeline_->add(std::move(name_), begin_, Clock::now());
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  Timeline* timeline_;
  std::string name_;
  Clock::time_point begin_;
};

}  // namespace tutti
