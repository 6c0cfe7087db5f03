#pragma once

// A record of what happened when, written as a Chrome trace (chrome://tracing, Perfetto).
//
// Threads: any. Failure: a file that cannot be written is logged once; nothing is recorded then.

#include <mutex>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/file_descriptor.h"
#include "base/process_mark.h"

namespace tutti {

class Timeline {
 public:
  /// Events of worker `rank` go to `file`, or to `file`.rank<R> when there are several workers
  /// (`tutti run` joins them). The file is complete when the timeline has ended.
  Timeline(const std::string& file, int rank, int size);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void add(std::string_view name, Clock::time_point begin, Clock::time_point end);
  /// Completes the file: what comes later is not in it.
  void finish();

 private:
  void flush();
  void say_failure() const;

  std::string file_;
  int rank_;
  ProcessMark process_;
  std::mutex mutex_;
  FileDescriptor out_;
  std::string pending_;
};

/// Records the time from its construction to its end, if there is a timeline.
class TimelineSpan {
 public:
  /// `name` must outlive this.
  TimelineSpan(Timeline* timeline, std::string_view name) : timeline_(timeline), name_(name) {
    if (timeline_ != nullptr) begin_ = Clock::now();
  }
  ~TimelineSpan() {
    if (timeline_ != nullptr) timeline_->add(name_, begin_, Clock::now());
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  Timeline* timeline_;
  std::string_view name_;
  Clock::time_point begin_;
};

}  // namespace tutti
